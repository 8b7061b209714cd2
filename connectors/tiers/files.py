"""KV blocks in files, one for each, named by its content key.

A file is written under another name and renamed once it is whole; it never changes. It begins with
a checksum over its key and its contents, which is verified when it is read: the disk may have lost
what was written last, or something may have been changed. A folder belongs to one engine at a time,
and is taken over by the next if that has the same model, dtype and layout.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
from blake3 import blake3

from connectors.owners import make_private
from connectors.tiers.base import TierCopy, TierName
from connectors.tiers.copier import Copier
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

_FLAG = "--kv-disk-path"
_PRIVATE = "kv-blocks"  # prompts can be told from KV: other users neither read nor write it
_VERSION = 1
_CHECKSUM = 32
_PAGE = 4096  # what file systems round the size of a file up to, as a rule
_SUFFIX = ".kv"
_NAME = re.compile(rf"[0-9a-f]{{64}}\{_SUFFIX}(\.tmp)?")
_READERS = 2


class _Manifest(msgspec.Struct, frozen=True):
    """What the files of a folder hold."""

    version: int
    compatibility: str  # model, weights, dtype and layout
    block_bytes: int


class _Folder:
    """The files of one engine, which holds a lock on the folder."""

    def __init__(self, path: Path, manifest: _Manifest) -> None:
        self.path = path = path / _PRIVATE
        self.file_bytes = _CHECKSUM + manifest.block_bytes
        make_private(path, f"choose another folder by {_FLAG}")
        try:
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"{_FLAG}: {path} cannot be written to: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._take_over(manifest)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"{_FLAG}: {path} is used by another worker; each worker needs its own folder"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"{_FLAG}: {path} cannot be used: {error.strerror}") from None

    def _take_over(self, manifest: _Manifest) -> None:
        """Keep what fits `manifest`, remove what does not."""
        file = self.path / "manifest.json"
        found = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(file.read_bytes(), type=_Manifest)
        for path in self._files():
            whole = path.suffix == _SUFFIX and path.stat().st_size == self.file_bytes
            if found != manifest or not whole:
                path.unlink()
        if found is not None and found != manifest:
            logger.warning(
                "%s held KV of %s, which is removed: this engine computes %s",
                self.path, found.compatibility, manifest.compatibility,
            )  # fmt: skip
        # Last: if this engine ends before, the next finds the old manifest and removes the rest.
        if found != manifest:
            file.write_bytes(msgspec.json.encode(manifest))

    def _files(self) -> list[Path]:
        return [path for path in self.path.iterdir() if _NAME.fullmatch(path.name)]

    def newest(self, count: int) -> list[bytes]:
        """Keys of up to `count` files, the least recently written first; the others are removed."""
        # Reading leaves no trace in a file, so age stands for use.
        files = sorted(self._files(), key=lambda path: path.stat().st_mtime_ns)
        cut = max(0, len(files) - count)
        for path in files[:cut]:
            path.unlink(missing_ok=True)
        return [bytes.fromhex(path.stem) for path in files[cut:]]

    def file(self, key: bytes) -> Path:
        return self.path / f"{key.hex()}{_SUFFIX}"

    def close(self) -> None:
        os.close(self._lock)


def disk_bytes(block_bytes: int) -> int:
    """What the file of a block takes up on disk, as far as it can be known."""
    return -(-(_CHECKSUM + block_bytes) // _PAGE) * _PAGE


class FileStore:
    """Below `upstream` [slots, elements] in host memory, into `pool` [blocks, elements]."""

    name: TierName = "disk"
    medium = "DISK"

    def __init__(
        self,
        path: Path,
        upstream: torch.Tensor,
        pool: torch.Tensor,
        capacity: int,
        compatibility: str,
    ) -> None:
        """`capacity` in blocks; `compatibility` names the model, its weights, dtype and layout.
        `ConfigError` names the flag if the folder cannot be used."""
        block_bytes = upstream.shape[1] * upstream.element_size()
        self._folder = _Folder(path, _Manifest(_VERSION, compatibility, block_bytes))
        self.capacity = capacity
        self._upstream = upstream.view(torch.uint8)
        self._pool = pool.view(torch.uint8)
        self._kept = self._folder.newest(capacity)
        # One writer, so that a file is not removed before an earlier call has written it.
        self._writer = Copier("kv-write")
        self._readers = Copier("kv-read", _READERS)
        self._closed = False

    def kept(self) -> list[bytes]:
        return self._kept

    def save(self, rows: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> TierCopy:
        def write(numbers: range) -> list[bool]:
            return [self._write(keys[n], self._upstream[rows[n]]) for n in numbers]

        return self._writer.start(len(rows), write)

    def _write(self, key: bytes, row: torch.Tensor) -> bool:
        """False if the disk does not take it."""
        path = self._folder.file(key)
        temporary = path.with_name(f"{path.name}.tmp")
        data = row.numpy().data
        try:
            # Not synced: what the disk loses is told by the checksum, and computed again.
            with temporary.open("wb") as file:
                file.write(_checksum(key, data))
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            logger.warning("%s cannot be written: %s", path, error.strerror)
            return False
        return True

    def load(self, keys: Sequence[bytes], slots: Sequence[int], blocks: Sequence[int]) -> TierCopy:
        def read(numbers: range) -> list[bool]:
            return [self._read(keys[n], self._pool[blocks[n]]) for n in numbers]

        return self._readers.start(len(blocks), read)

    def _read(self, key: bytes, row: torch.Tensor) -> bool:
        """False if the file is gone, or not what was written."""
        path = self._folder.file(key)
        try:
            # Of bytes, which cannot be written to, `torch.frombuffer` warns.
            content = bytearray(path.read_bytes())
        except OSError as error:
            logger.warning("%s cannot be read: %s", path, error.strerror)
            return False
        data = memoryview(content)[_CHECKSUM:]
        right = len(content) == self._folder.file_bytes
        if not right or _checksum(key, data) != content[:_CHECKSUM]:
            logger.warning("%s is corrupt: its KV is computed again", path)
            return False
        row.copy_(torch.frombuffer(data, dtype=torch.uint8))
        return True

    def remove(self, keys: Sequence[bytes]) -> None:
        paths = [self._folder.file(key) for key in keys]

        def unlink() -> None:
            for path in paths:
                with contextlib.suppress(OSError):
                    path.unlink()

        if paths:
            self._writer.call(unlink)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        self._readers.close()
        # The lock goes last: the next engine must not find writes of this one under way.
        self._folder.close()


def _checksum(key: bytes, data: memoryview) -> bytes:
    return blake3(key).update(data).digest()
