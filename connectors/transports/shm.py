"""Shared memory on one host: peers receive a region's memory over a Unix socket, map it and copy
from it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from connectors.host_memory import MemoryBudget
from connectors.owners import make_private
from connectors.transports.base import Range, Transfer, Transport, check_ranges
from connectors.transports.descriptor_passing import (
    PRIVATE,
    DescriptorRequest,
    DescriptorServer,
    sweep_sockets,
)
from connectors.transports.shared_memory import Bytes, SharedMemory, map_for_reading
from protocol.errors import ConfigError, TransferError

_PREFIX = "region-"


class _Description(msgspec.Struct):
    name: str
    nbytes: int


@dataclass(frozen=True)
class _Region:
    """Memory of ours, and who hands it out."""

    memory: SharedMemory
    server: DescriptorServer


@dataclass(frozen=True)
class _Mapped:
    """Memory of a peer's, as its `description` says; `tensor` and `view` are the same bytes."""

    description: bytes
    tensor: torch.Tensor
    view: Bytes


_Peers = dict[tuple[str, str], _Mapped]
"""By instance id and region."""


class _Done(Transfer):
    """A copy that was made when it was asked for."""

    def poll(self) -> bool:
        return True

    def cancel(self) -> None:
        pass

    @property
    def settled(self) -> bool:
        return True


class _Connecting(Transfer):
    """Waits for a peer's memory, maps it and puts it among `peers`."""

    def __init__(
        self, path: Path, key: tuple[str, str], description: bytes, nbytes: int, peers: _Peers
    ) -> None:
        self._key = key
        self._description = description
        self._nbytes = nbytes
        self._peers = peers
        self._error: TransferError | None = None
        self.path = path
        self.request = DescriptorRequest(path)

    def advance(self) -> None:
        """Take the memory if it has come; a failure is for `poll` to raise."""
        try:
            descriptor = self.request.poll()
            if descriptor is not None:
                self._map(descriptor)
        except TransferError as error:
            self._error = error

    def _map(self, descriptor: int) -> None:
        try:
            mapped = map_for_reading(descriptor, self._nbytes)
        finally:
            os.close(descriptor)  # the mapping does not need it
        self._peers[self._key] = _Mapped(self._description, *mapped)

    def poll(self) -> bool:
        self.advance()
        if self._error is not None:
            raise self._error
        return self.settled

    def cancel(self) -> None:
        if not self.settled:
            self.request.cancel()
            self._error = TransferError(f"shm: connecting to {self.path.name} was cancelled")

    @property
    def settled(self) -> bool:
        return self.request.settled


class ShmTransport(Transport):
    """`folder` holds one Unix socket for each region, and is this user's alone."""

    name = "shm"
    maps = True

    def __init__(self, folder: Path, instance_id: str) -> None:
        self.folder = folder
        # A new name at each start: a consumer of the former one must notice that it has ended.
        self._owner = f"{instance_id}-{uuid.uuid4().hex[:8]}"
        self._budget = MemoryBudget()
        self._regions: dict[str, _Region] = {}
        self._peers: _Peers = {}
        self._connecting: list[_Connecting] = []
        make_private(folder, PRIVATE)
        self.swept = sweep(folder)

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if torch.device(device).type != "cpu":
            raise ConfigError(
                f"shm: memory on {device} cannot be shared: set kv_buffer_device to cpu"
            )
        if region in self._regions or nbytes <= 0:
            raise ConfigError(f"shm: region '{region}' exists already or has no bytes ({nbytes})")
        memory = SharedMemory(nbytes, self._budget, sparse=sparse, granule=granule)
        try:
            server = DescriptorServer(self._path(region), memory.reader_descriptor())
        except ConfigError:
            memory.close()
            raise
        self._regions[region] = _Region(memory, server)
        return memory.tensor

    def _path(self, region: str) -> Path:
        return self.folder / f"{_PREFIX}{region}-{self._owner}"

    def commit(self, region: str, offset: int, size: int) -> None:
        self._regions[region].memory.commit(offset, size)

    def discard(self, region: str, offset: int, size: int) -> None:
        self._regions[region].memory.discard(offset, size)

    def describe(self, region: str) -> bytes:
        ours = self._regions[region]
        return msgspec.msgpack.encode(_Description(ours.server.path.name, ours.memory.view.size))

    def connect(self, peer: str, region: str, description: bytes) -> Transfer | None:
        known = self._peers.get((peer, region))
        if known is not None and known.description == description:
            return None
        wanted = self._decode(description)
        connecting = _Connecting(
            self.folder / wanted.name, (peer, region), description, wanted.nbytes, self._peers
        )
        self._connecting.append(connecting)
        return None if connecting.poll() else connecting

    def _decode(self, description: bytes) -> _Description:
        """`TransferError` unless it names a socket in the folder."""
        try:
            wanted = msgspec.msgpack.decode(description, type=_Description)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise TransferError(f"shm: the region's description is malformed: {error}") from None
        path = self.folder / wanted.name
        if not wanted.name.startswith(_PREFIX) or path.parent != self.folder or wanted.nbytes <= 0:
            raise TransferError(f"shm: '{wanted.name[:80]}' is not the name of a region")
        return wanted

    def _awaited(self) -> list[_Connecting]:
        self._connecting = [one for one in self._connecting if not one.settled]
        return self._connecting

    @property
    def descriptors(self) -> Sequence[int]:
        return [one.request.fileno() for one in self._awaited()]

    def poll(self) -> None:
        """Ends requests for peers' memory too. Their callers may have given up, and an answer that
        is not taken keeps the engine's loop awake."""
        for one in self._awaited():
            one.advance()

    def _peer(self, peer: str, region: str) -> _Mapped:
        known = self._peers.get((peer, region))
        if known is None:
            raise TransferError(f"shm: region '{region}' of instance {peer} is not connected")
        return known

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        target, source = self._regions[region].memory.view, self._peer(peer, region).view
        problem = check_ranges(ranges, source.size, target.size)
        if problem is not None:
            raise TransferError(f"shm: {problem}")
        for there, here, size in ranges:
            target[here : here + size] = source[there : there + size]
        return _Done()

    def view(self, peer: str, region: str, offset: int, size: int) -> torch.Tensor:
        remote = self._peer(peer, region).tensor
        problem = check_ranges([Range(offset, 0, size)], remote.numel(), size)
        if problem is not None:
            raise TransferError(f"shm: {problem}")
        return remote[offset : offset + size]

    def disconnect(self, peer: str) -> None:
        # Only the name is forgotten: tensors of its memory keep the mapping until they are gone.
        for key in [key for key in self._peers if key[0] == peer]:
            del self._peers[key]

    def close(self) -> None:
        for connecting in self._connecting:
            connecting.cancel()
        self._peers.clear()
        for region in self._regions.values():
            region.server.close()
            region.memory.close()
        self._regions.clear()

    def check_integrity(self) -> list[str]:
        self.poll()  # what has ended meanwhile is not lost
        paths = [region.server.path for region in self._regions.values()]
        gone = [f"shm: socket {path.name} was removed" for path in paths if not path.exists()]
        return gone + [
            f"shm: the descriptor of {one.path.name} has not arrived" for one in self._awaited()
        ]


def sweep(folder: Path) -> int:
    """Remove the sockets of regions whose owner is dead; returns how many."""
    return sweep_sockets(folder, f"{_PREFIX}*")
