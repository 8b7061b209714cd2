"""Shared memory on one host: a region is a file under /dev/shm that peers map and copy from."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import MADV_REMOVE, PAGESIZE, mmap
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from connectors import owners
from connectors.transports.base import Range, Transfer, Transport, check_ranges
from protocol.errors import ConfigError, TransferError

_PREFIX = "region-"
_GRAIN = 1 << 20  # bytes of a sparse region without larger granules that are committed together
Bytes = npt.NDArray[np.uint8]


class _Description(msgspec.Struct):
    name: str
    nbytes: int


@dataclass(frozen=True)
class _Mapped:
    """A segment; `view` is its memory for copying, as slices of a tensor cost as much as copying a
    small block does."""

    description: bytes
    memory: torch.Tensor
    view: Bytes


class _Done(Transfer):
    """A copy that was made when it was asked for."""

    def poll(self) -> bool:
        return True

    def cancel(self) -> None:
        pass

    @property
    def settled(self) -> bool:
        return True


class ShmTransport(Transport):
    """Segments carry a lock that their owner holds while it lives, so that whoever starts next can
    tell and remove those of a process that was killed."""

    name = "shm"
    maps = True

    def __init__(self, directory: Path, instance_id: str) -> None:
        self._directory = directory
        # A name for each life: who had mapped a former one must notice that it has ended.
        self._owner = f"{instance_id}-{uuid.uuid4().hex[:8]}"
        self._regions: dict[str, _Mapped] = {}
        self._locks: dict[Path, int] = {}
        self._committed: dict[str, npt.NDArray[np.bool_]] = {}
        self._grains: dict[str, int] = {}
        self._peers: dict[tuple[str, str], _Mapped] = {}
        directory.mkdir(parents=True, exist_ok=True)
        self.swept = sweep(directory)

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if torch.device(device).type != "cpu":
            raise ConfigError(
                f"shm: memory of {device} cannot be shared: kv_buffer_device must be cpu"
            )
        if region in self._regions:
            raise ConfigError(f"shm: region '{region}' exists")
        path = self._path(region)
        self._locks[path] = self._create(path, nbytes, sparse)
        self._grains[region] = grain = granule if granule >= PAGESIZE else _GRAIN
        self._committed[region] = np.full(-(-nbytes // grain), not sparse)
        memory = torch.from_file(str(path), shared=True, size=nbytes, dtype=torch.uint8)
        description = msgspec.msgpack.encode(_Description(path.name, nbytes))
        self._regions[region] = _Mapped(description, memory, memory.numpy())
        return memory

    def _create(self, path: Path, nbytes: int, sparse: bool) -> int:
        """The descriptor that holds the segment's lock."""
        descriptor = owners.create_locked(path)
        try:
            os.truncate(descriptor, nbytes)
            if not sparse:
                os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise ConfigError(f"shm: no room for {nbytes} bytes: {error.strerror}") from None
        return descriptor

    def commit(self, region: str, offset: int, size: int) -> None:
        grain, grains = self._grains[region], self._committed[region]
        first, end = offset // grain, -(-(offset + size) // grain)
        if grains[first:end].all():
            return  # asking again takes a quarter of the time that filling it does
        descriptor = self._locks[self._path(region)]
        start = first * grain
        stop = min(end * grain, self._regions[region].view.size)
        with contextlib.suppress(OSError):  # too little for what may come: just what is asked for
            os.posix_fallocate(descriptor, start, stop - start)
            grains[first:end] = True
            return
        try:
            os.posix_fallocate(descriptor, offset, size)
        except OSError as error:
            raise TransferError(f"shm: no room for {size} bytes: {error.strerror}") from None

    def discard(self, region: str, offset: int, size: int) -> None:
        """Give back what lies in pages that are all in the range."""
        first, end = -(-offset // PAGESIZE) * PAGESIZE, (offset + size) // PAGESIZE * PAGESIZE
        if first < end:
            grain = self._grains[region]
            self._committed[region][first // grain : -(-end // grain)] = False
            descriptor = self._locks[self._path(region)]
            with mmap(descriptor, end - first, offset=first) as pages:
                pages.madvise(MADV_REMOVE)

    def _path(self, region: str) -> Path:
        return self._directory / f"{_PREFIX}{region}-{self._owner}"

    def describe(self, region: str) -> bytes:
        return self._regions[region].description

    def connect(self, peer: str, region: str, description: bytes) -> None:
        known = self._peers.get((peer, region))
        if known is not None and known.description == description:
            return
        memory = self._map(description)
        self._peers[peer, region] = _Mapped(description, memory, memory.numpy())

    def _map(self, description: bytes) -> torch.Tensor:
        try:
            wanted = msgspec.msgpack.decode(description, type=_Description)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise TransferError(f"shm: a description that is none of ours: {error}") from None
        path = self._directory / wanted.name
        if not wanted.name.startswith(_PREFIX) or path.parent != self._directory:
            raise TransferError(f"shm: '{wanted.name[:80]}' is no segment's name")
        try:
            if path.stat().st_size != wanted.nbytes or wanted.nbytes <= 0:
                raise TransferError(f"shm: segment {wanted.name} has another size")
            return torch.from_file(str(path), shared=True, size=wanted.nbytes, dtype=torch.uint8)
        except (OSError, RuntimeError, ValueError) as error:
            raise TransferError(f"shm: segment {wanted.name} is gone: {error}") from None

    def _peer(self, peer: str, region: str) -> _Mapped:
        known = self._peers.get((peer, region))
        if known is None:
            raise TransferError(f"shm: region '{region}' of instance {peer} is not connected")
        return known

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        target, source = self._regions[region].view, self._peer(peer, region).view
        problem = check_ranges(ranges, source.size, target.size)
        if problem is not None:
            raise TransferError(f"shm: {problem}")
        for there, here, size in ranges:
            target[here : here + size] = source[there : there + size]
        return _Done()

    def view(self, peer: str, region: str, offset: int, size: int) -> torch.Tensor:
        remote = self._peer(peer, region).memory
        problem = check_ranges([Range(offset, 0, size)], remote.numel(), size)
        if problem is not None:
            raise TransferError(f"shm: {problem}")
        return remote[offset : offset + size]

    def disconnect(self, peer: str) -> None:
        for key in [key for key in self._peers if key[0] == peer]:
            del self._peers[key]

    def close(self) -> None:
        self._peers.clear()
        self._regions.clear()
        for path in list(self._locks):
            self._drop(path)

    def _drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        os.close(self._locks.pop(path))

    def check_integrity(self) -> list[str]:
        return [f"shm: segment {path.name} is gone" for path in self._locks if not path.exists()]


def sweep(directory: Path) -> int:
    """Remove segments whose owner is dead; returns how many."""
    return owners.sweep(directory, f"{_PREFIX}*")
