"""Shared storage: what is offered of a region lies in files, one per granule, that peers read.

Slow beside the others, and without any demand on the network but a common folder. Files are written
whole and renamed, carry a checksum, and go with their instance, or with the next that starts after
it died.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import msgspec
import torch
from blake3 import blake3

from connectors.owners import OwnedFolder
from connectors.transports.base import Range, Transfer, Transport, check_ranges
from protocol.errors import ConfigError, TransferError

_PREFIX = ".regions-"
_CHECKSUM = 32
_READERS = 4


class _Description(msgspec.Struct):
    folder: str
    nbytes: int
    granule: int


@dataclass(frozen=True)
class _Region:
    memory: torch.Tensor
    granule: int


class _Work(Transfer):
    """Something that other threads do."""

    def __init__(self, parts: Sequence[Future[None]], stop: Event) -> None:
        self._parts = parts
        self._stop = stop

    def poll(self) -> bool:
        if self._stop.is_set():
            raise TransferError("shared_storage: the transfer was cancelled")
        for part in self._parts:
            if part.done() and (error := part.exception()) is not None:
                if isinstance(error, TransferError):
                    raise error
                raise TransferError(f"shared_storage: {error}")
        return self.settled

    def cancel(self) -> None:
        if not self.settled:
            self._stop.set()

    @property
    def settled(self) -> bool:
        return all(part.done() for part in self._parts)


class FilesTransport(Transport):
    """`root` is the folder that all instances share."""

    name = "shared_storage"

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._own = OwnedFolder(root, _PREFIX)
        self._folder = self._own.path
        self._regions: dict[str, _Region] = {}
        self._peers: dict[tuple[str, str], _Description] = {}
        self._work: list[_Work] = []
        # One thread, so that a file's later contents never lose against its earlier ones.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="read")

    def takes(self, device: str) -> bool:
        return torch.device(device).type != "meta"

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if region in self._regions or nbytes <= 0:
            raise ConfigError(
                f"shared_storage: region '{region}' exists already or has no bytes ({nbytes})"
            )
        if torch.device(device).type == "meta":
            raise ConfigError(f"shared_storage: memory on {device} cannot be written to files")
        try:
            memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise ConfigError(f"shared_storage: cannot allocate {nbytes} bytes: {error}") from None
        self._regions[region] = _Region(memory, granule or nbytes)
        (self._folder / region).mkdir()
        return memory

    def describe(self, region: str) -> bytes:
        ours = self._regions[region]
        folder = str(self._folder.relative_to(self._root) / region)
        body = msgspec.msgpack.encode(_Description(folder, ours.memory.numel(), ours.granule))
        return blake3(body).digest() + body

    def connect(self, peer: str, region: str, description: bytes) -> None:
        body = description[_CHECKSUM:]
        try:
            if blake3(body).digest() != description[:_CHECKSUM]:
                raise TransferError("shared_storage: the region's description has a wrong checksum")
            wanted = msgspec.msgpack.decode(body, type=_Description)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise TransferError(
                f"shared_storage: the region's description is malformed: {error}"
            ) from None
        parts = Path(wanted.folder).parts
        if len(parts) != 2 or not parts[0].startswith(_PREFIX) or parts[1] != region:
            raise TransferError(
                f"shared_storage: '{wanted.folder[:80]}' is not the folder of a region"
            )
        if not self._finds(wanted.folder) or wanted.nbytes <= 0 or wanted.granule <= 0:
            raise TransferError(
                f"shared_storage: {wanted.folder} is not in {self._root} (shared_storage_path)"
            )
        self._peers[peer, region] = wanted

    def _finds(self, folder: str) -> bool:
        # A peer gave the name: it may be too long, or a folder of another user.
        try:
            return (self._root / folder).is_dir()
        except OSError as error:
            raise TransferError(
                f"shared_storage: {folder[:80]} cannot be looked at: {error.strerror}"
            ) from None

    def offer(self, region: str, ranges: Sequence[tuple[int, int]]) -> Transfer:
        """Write whole granules; the memory must not change until that has ended."""
        ours, stop = self._regions[region], Event()
        folder = self._folder / region

        def write() -> None:
            for offset, size in ranges:
                for at in range(offset, offset + size, ours.granule):
                    if stop.is_set():
                        return
                    data = ours.memory[at : at + ours.granule].cpu().numpy().tobytes()
                    _write(folder / str(at // ours.granule), data)

        return self._start([self._writer.submit(write)], stop)

    def release(self, region: str, ranges: Sequence[tuple[int, int]]) -> None:
        granule, folder = self._regions[region].granule, self._folder / region

        def remove() -> None:
            for offset, size in ranges:
                for at in range(offset, offset + size, granule):
                    (folder / str(at // granule)).unlink(missing_ok=True)

        # Behind the writes of these pieces that were asked for before; no caller waits for it.
        self._writer.submit(remove)

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        known = self._peers.get((peer, region))
        if known is None:
            raise TransferError(f"shared_storage: instance {peer} is not connected")
        local = self._regions[region].memory
        problem = check_ranges(ranges, known.nbytes, local.numel())
        if problem is not None:
            raise TransferError(f"shared_storage: {problem}")
        stop = Event()

        def run(mine: Sequence[Range]) -> None:
            for r in mine:
                _read(self._root / known.folder, known.granule, r, local, stop)

        shares = [ranges[i::_READERS] for i in range(min(_READERS, len(ranges)))]
        return self._start([self._readers.submit(run, share) for share in shares], stop)

    def _start(self, parts: Sequence[Future[None]], stop: Event) -> _Work:
        work = _Work(parts, stop)
        self._work = [one for one in self._work if not one.settled]
        self._work.append(work)
        return work

    def disconnect(self, peer: str) -> None:
        for key in [key for key in self._peers if key[0] == peer]:
            del self._peers[key]

    def close(self) -> None:
        for work in self._work:
            work.cancel()
        self._writer.shutdown()
        self._readers.shutdown()
        self._own.close()
        self._peers.clear()
        self._regions.clear()

    def check_integrity(self) -> list[str]:
        left = sum(not work.settled for work in self._work)
        return [f"shared_storage: {left} transfers are still running"] if left else []


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(blake3(data).digest() + data)
        temporary.replace(path)  # by renaming, so that a reader finds all of it or nothing
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TransferError(f"shared_storage: cannot write {path}: {error}") from None


def _read(folder: Path, granule: int, wanted: Range, local: torch.Tensor, stop: Event) -> None:
    """Copy a range from the granules that it covers."""
    done = 0
    while done < wanted.size and not stop.is_set():
        index, start = divmod(wanted.remote + done, granule)
        size = min(wanted.size - done, granule - start)
        data = _granule(folder / str(index))
        piece = torch.frombuffer(data, dtype=torch.uint8)[_CHECKSUM + start :][:size]
        if piece.numel() != size:
            raise TransferError(f"shared_storage: {folder / str(index)} is too short")
        local[wanted.local + done : wanted.local + done + size] = piece
        done += size


def _granule(path: Path) -> bytearray:
    """Checksum and contents of a file."""
    try:
        data = bytearray(path.read_bytes())
    except OSError as error:
        raise TransferError(f"shared_storage: {path} cannot be read: {error.strerror}") from None
    if blake3(memoryview(data)[_CHECKSUM:]).digest() != data[:_CHECKSUM]:
        raise TransferError(f"shared_storage: {path} is corrupt")
    return data
