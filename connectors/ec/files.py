"""EC over shared storage, in vLLM's layout: `{root}/{mm_hash}/encoder_cache.safetensors`.

A file appears complete, by rename, and never changes; its checksum is verified on reading. Beside
it lie the name of the instance that answers for it (`.owner`) and one `.told-N` for everybody who
was told of it and has not come yet: a consumer removes one when it is done. Entries of an instance
that died are taken over by the next one that starts.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.base import EC_TENSOR, ECConnector, ECLoad, Tensors
from connectors.ec import file_format
from connectors.ec.owners import Owner
from protocol.errors import InvalidRequest, TransferError, TransferTimeout

FILE_NAME = "encoder_cache.safetensors"
_OWNER = ".owner"
_TOLD = ".told-"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class FileStoreOptions:
    """`capacity` in bytes bounds what this instance answers for; `lease_s` how long an entry waits
    for those that were told of it; `load_timeout_s` how long a consumer waits for an entry."""

    root: Path
    capacity: int
    load_timeout_s: float
    lease_s: float


@dataclass
class _Entry:
    """`size` on disk in bytes; `told`: until when whose mark is waited for."""

    size: int
    params: dict[str, Any]
    told: deque[tuple[float, Path]] = field(default_factory=deque)


class FileEC(ECConnector):
    def __init__(self, options: FileStoreOptions) -> None:
        self._options = options
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0
        self.lapsed = 0
        self.evictions = 0
        options.root.mkdir(parents=True, exist_ok=True)
        self._owner = Owner(options.root)
        self._adopt()

    def _adopt(self) -> None:
        """Answer for what dead instances left, oldest first."""
        found = []
        for path in self._options.root.glob(f"*/{FILE_NAME}"):
            with contextlib.suppress(OSError):
                owner = (path.parent / _OWNER).read_text()
                if not self._owner.alive(owner):
                    stat = path.stat()
                    found.append((stat.st_mtime, path.parent.name, stat.st_size))
        for _, name, size in sorted(found):
            with contextlib.suppress(TransferError, OSError, KeyError):
                tensors = file_format.load(self._path(name))
                (self._path(name).parent / _OWNER).write_text(self._owner.name)
                self._record(name, _Entry(size, _params(tensors)))

    def _path(self, mm_hash: str) -> Path:
        if not _NAME.fullmatch(mm_hash):
            raise InvalidRequest(f"'{mm_hash[:64]}' cannot name a media item", param="mm_hash")
        return self._options.root / mm_hash / FILE_NAME

    def put(self, mm_hash: str, tensors: Tensors) -> dict[str, Any] | None:
        path = self._path(mm_hash)
        if mm_hash not in self._entries:
            size = sum(tensor.nbytes for tensor in tensors.values())
            if size > self._options.capacity:
                raise TransferError(f"media item {mm_hash[:16]}: {size} bytes exceed the EC store")
            if not self._make_room(size):
                return None
            file_format.save(path, tensors)
            with contextlib.suppress(OSError):
                (path.parent / _OWNER).write_text(self._owner.name)
            self._record(mm_hash, _Entry(path.stat().st_size, _params(tensors)))
        return self._tell(mm_hash)

    def _make_room(self, size: int) -> bool:
        for mm_hash in list(self._entries):
            if self._size + size <= self._options.capacity:
                break
            if not self._pinned(self._entries[mm_hash]):
                self.evictions += 1
                self._remove(mm_hash)
        return self._size + size <= self._options.capacity

    def _pinned(self, entry: _Entry) -> bool:
        now = time.monotonic()
        while entry.told and (entry.told[0][0] <= now or not entry.told[0][1].exists()):
            deadline, mark = entry.told.popleft()
            self.lapsed += deadline <= now and mark.exists()
            mark.unlink(missing_ok=True)
        return bool(entry.told)

    def _record(self, mm_hash: str, entry: _Entry) -> None:
        self._entries[mm_hash] = entry
        self._size += entry.size

    def _tell(self, mm_hash: str) -> dict[str, Any]:
        entry = self._entries[mm_hash]
        self._entries.move_to_end(mm_hash)
        mark = self._path(mm_hash).with_name(f"{_TOLD}{uuid.uuid4().hex[:16]}")
        with contextlib.suppress(OSError):
            mark.touch(exist_ok=False)
            entry.told.append((time.monotonic() + self._options.lease_s, mark))
        return entry.params

    def find(self, mm_hash: str) -> dict[str, Any] | None:
        if mm_hash not in self._entries:
            return None
        if not self._path(mm_hash).exists():
            self._size -= self._entries.pop(mm_hash).size
            return None
        return self._tell(mm_hash)

    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        return _FileLoad(self._path(mm_hash), time.monotonic() + self._options.load_timeout_s)

    def decline(self, mm_hash: str, params: dict[str, Any] | None) -> None:
        _come(self._path(mm_hash))

    def _remove(self, mm_hash: str) -> None:
        self._size -= self._entries.pop(mm_hash).size
        shutil.rmtree(self._path(mm_hash).parent, ignore_errors=True)

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._remove(mm_hash)

    def close(self) -> None:
        """Remove this instance's entries."""
        self.clear()
        self._owner.close()

    def check_integrity(self) -> list[str]:
        missing = [name for name in self._entries if not self._path(name).exists()]
        problems = [f"EC file of {name[:16]} is gone" for name in missing]
        total = sum(entry.size for entry in self._entries.values())
        if total != self._size:
            problems.append(f"EC files sum to {total} bytes, books say {self._size}")
        return problems


def _params(tensors: Tensors) -> dict[str, Any]:
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"size_bytes": size, "shape": list(tensors[EC_TENSOR].shape)}


def _come(path: Path) -> None:
    """Take away one mark of those that were told of an entry."""
    with contextlib.suppress(OSError, StopIteration):
        next(path.parent.glob(f"{_TOLD}*")).unlink(missing_ok=True)


class _FileLoad(ECLoad):
    """Waits for a file to appear."""

    def __init__(self, path: Path, deadline: float) -> None:
        self._path = path
        self._deadline = deadline
        self._done = False

    def poll(self) -> Tensors | None:
        if self._path.exists():
            try:
                return file_format.load(self._path)
            except TransferError:
                self._path.unlink(missing_ok=True)  # so that it is made again
                raise
            finally:
                self.cancel()
        if time.monotonic() > self._deadline:
            name = self._path.parent.name[:16]
            raise TransferTimeout(f"no embedding for media item {name} in time")
        return None

    def cancel(self) -> None:
        if not self._done:
            self._done = True
            _come(self._path)
