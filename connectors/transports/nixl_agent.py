"""The part of NVIDIA's NIXL that reads need, over its UCX backend, and how a region is described.

NIXL's own Python class fixes the delay of the progress thread at 0, which keeps one core busy for
as long as the process lives, so this calls the bindings beneath it.

UCX picks network and protocol; its environment variables say which, for example
`UCX_NET_DEVICES=lo` for tests on one machine and `UCX_TLS=tcp` to rule out shared memory.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta

from connectors.transports.base import Range
from protocol.errors import ConfigError, TransferError

# How long the progress thread sleeps if UCX does not wake it.
PROGRESS_DELAY_US = 5_000

_VERSION = 1
# What NIXL can be told: a region never reaches beyond 64 bits.
_Address = Annotated[int, Meta(ge=1, lt=1 << 62)]
_Size = Annotated[int, Meta(ge=1, lt=1 << 62)]
_Device = Annotated[int, Meta(ge=0, lt=1 << 31)]
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Place:
    """A region's memory as NIXL names it."""

    address: _Address
    nbytes: _Size
    memory: Literal["DRAM", "VRAM"]
    device: _Device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        index = tensor.get_device()
        memory: Literal["DRAM", "VRAM"] = "DRAM" if index < 0 else "VRAM"
        return cls(tensor.data_ptr(), tensor.numel(), memory, max(index, 0))


class _Envelope(msgspec.Struct, frozen=True):
    """The checksum keeps damaged bytes from NIXL, which trusts what it parses."""

    version: int
    checksum: int
    body: bytes


class NixlDescription(msgspec.Struct, frozen=True):
    """What a peer must know of a region. `metadata` is NIXL's own: address and memory keys."""

    agent: str
    place: Place
    metadata: bytes

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return msgspec.msgpack.encode(_Envelope(_VERSION, zlib.crc32(body), body))

    @classmethod
    def decode(cls, data: bytes) -> NixlDescription:
        """Raises `TransferError` unless `data` is whole and of our version."""
        try:
            envelope = msgspec.msgpack.decode(data, type=_Envelope)
            if envelope.version != _VERSION:
                raise TransferError(
                    f"nixl: the region's description has version {envelope.version}"
                )
            if zlib.crc32(envelope.body) != envelope.checksum:
                raise TransferError("nixl: the region's description has a wrong checksum")
            return msgspec.msgpack.decode(envelope.body, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise TransferError(f"nixl: the region's description is malformed: {error}") from None


class Agent:
    """A NIXL agent with its UCX backend and one progress thread. Handles are plain numbers."""

    def __init__(self, name: str) -> None:
        try:
            import nixl
        except ImportError as error:
            raise ConfigError(f"nixl: {error}: pip install triptych[nixl]") from None
        self.name = name
        self._nixl: Any = nixl
        self._errors = _error_classes(nixl)
        self._memory = {"DRAM": self._nixl.DRAM_SEG, "VRAM": self._nixl.VRAM_SEG}
        config = self._nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = PROGRESS_DELAY_US
        # All calls come from one thread, see `Transport`.
        config.syncMode = self._nixl.NIXL_THREAD_SYNC_NONE
        try:
            self._agent: Any = self._nixl.nixlAgent(name, config)
            self._backends = [self._agent.createBackend("UCX", {})]
        except self._errors as error:
            raise ConfigError(f"nixl: the UCX backend cannot start: {error}") from None

    def register(self, place: Place) -> Any:
        """Let peers read memory; what this returns describes and deregisters it."""
        row = (place.address, place.nbytes, place.device, "")
        registration = self._nixl.nixlRegDList(self._memory[place.memory], [row])
        try:
            self._agent.registerMem(registration, self._backends)
        except self._errors as error:
            raise ConfigError(f"nixl: cannot register {place}: {error}") from None
        return registration

    def deregister(self, registration: Any) -> None:
        self._agent.deregisterMem(registration, self._backends)

    def metadata(self, registration: Any) -> bytes:
        """How to reach this agent and read one registration."""
        blob: bytes = self._agent.getLocalPartialMD(registration, True, self._backends)
        return blob

    def add(self, metadata: bytes) -> None:
        """Learn of a remote agent, or of one more registration of a known one."""
        try:
            self._agent.loadRemoteMD(metadata)
        except self._errors as error:
            raise TransferError(f"nixl: the peer's metadata was refused: {error}") from None

    def forget(self, agent: str) -> None:
        """Drop a remote agent. A read that has not ended would go on arriving, unseen."""
        with contextlib.suppress(self._nixl.nixlNotFoundError):
            self._agent.invalidateRemoteMD(agent)

    def read(self, agent: str, remote: Place, local: Place, ranges: Sequence[Range]) -> int:
        """Start one transfer; returns its handle, which must be released."""
        there, here = _descriptors(ranges, remote, local)
        handle: int | None = None
        try:
            handle = int(
                self._agent.createXferReq(
                    self._nixl.NIXL_READ,
                    self._nixl.nixlXferDList(self._memory[local.memory], here),
                    self._nixl.nixlXferDList(self._memory[remote.memory], there),
                    agent,
                )
            )
            self._agent.postXferReq(handle)
        except self._errors as error:
            if handle is not None:
                self.release(handle)
            raise TransferError(f"nixl: cannot read from {agent}: {error}") from None
        return handle

    def done(self, handle: int) -> bool:
        """Whether all bytes are here. Raises `TransferError` once no more will come."""
        try:
            return bool(self._agent.getXferStatus(handle) == self._nixl.NIXL_SUCCESS)
        except self._errors as error:
            raise TransferError(f"nixl: {error}") from None

    def release(self, handle: int) -> None:
        """Give a handle back. Bytes of a read that has not ended would go on arriving, unseen."""
        self._agent.releaseXferReq(handle)

    def close(self) -> None:
        """Stop the backend and its thread: nothing is written from here on."""
        del self._agent


def _error_classes(nixl: Any) -> tuple[type[Exception], ...]:
    """NIXL's exceptions, which have no base of their own."""
    names = [name for name in vars(nixl) if name.startswith("nixl") and name.endswith("Error")]
    return tuple(getattr(nixl, name) for name in names)


def _descriptors(ranges: Sequence[Range], remote: Place, local: Place) -> tuple[Any, Any]:
    """Rows (address, size, device) for both sides; arrays, unless a single row is faster."""
    if len(ranges) == 1:
        (r,) = ranges
        there = [(remote.address + r.remote, r.size, remote.device)]
        return there, [(local.address + r.local, r.size, local.device)]
    sources, targets, sizes = merge(ranges)
    return _rows(remote, sources, sizes), _rows(local, targets, sizes)


def merge(ranges: Sequence[Range]) -> tuple[Numbers, Numbers, Numbers]:
    """Remote offsets, local offsets and sizes of runs that are contiguous on both sides."""
    sources, targets, sizes = np.array(
        [[r.remote for r in ranges], [r.local for r in ranges], [r.size for r in ranges]],
        dtype=np.uint64,
    )
    starts = np.ones(len(ranges), dtype=np.bool_)
    starts[1:] = (sources[1:] != sources[:-1] + sizes[:-1]) | (
        targets[1:] != targets[:-1] + sizes[:-1]
    )
    first = np.flatnonzero(starts)
    return sources[first], targets[first], np.add.reduceat(sizes, first)


def _rows(place: Place, offsets: Numbers, sizes: Numbers) -> Numbers:
    rows = np.empty((len(sizes), 3), dtype=np.uint64)
    rows[:, 0] = offsets + np.uint64(place.address)
    rows[:, 1] = sizes
    rows[:, 2] = place.device
    return rows
