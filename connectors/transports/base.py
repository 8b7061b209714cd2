"""What a transport does: hold named regions of memory, and read ranges of a peer's region into the
region of the same name here.

An engine's EC and KV connectors use one instance of a transport where they are configured alike,
and call it from one thread. No call blocks; work that takes time is polled. A region is registered
once, when it is allocated, never per request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch

from protocol.errors import TransferError


class Range(NamedTuple):
    """`size` bytes from `remote` in the peer's region to `local` in ours (byte offsets)."""

    remote: int
    local: int
    size: int


class Transfer(ABC):
    """A read under way. Its starter polls it to its end or cancels it."""

    @abstractmethod
    def poll(self) -> bool:
        """True once all bytes are here. Raises `TransferError` if they will not come."""

    @abstractmethod
    def cancel(self) -> None:
        """Give up; idempotent. Bytes may still arrive until `settled`."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """True once nothing will be written to the local ranges any more."""


class Transport(ABC):
    """One per process; `name` is what configurations call it."""

    name: str
    maps: bool = False
    """Whether `view` works."""

    def takes(self, device: str) -> bool:
        """Whether peers can read memory of that device."""
        return torch.device(device).type == "cpu"

    @abstractmethod
    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        """A registered, zeroed uint8[nbytes] that peers can read, on `device`.

        A `sparse` one may be larger than what is free: a range is used only once it has been
        committed. `granule` is the size of the pieces that are offered. `ConfigError` if the
        transport cannot register memory of that device, or if the region exists.
        """

    def commit(self, region: str, offset: int, size: int) -> None:  # noqa: B027 — see shm
        """Make sure that a range of a sparse region has memory. `TransferError` if none is left."""

    def discard(self, region: str, offset: int, size: int) -> None:  # noqa: B027 — see shm
        """What a committed range of a sparse region holds is not needed any more."""

    def offer(self, region: str, ranges: Sequence[tuple[int, int]]) -> Transfer | None:
        """Let peers read (offset, size) pieces of ours, each of whole granules: what to wait for
        before they are told, None if nothing."""
        return None

    def release(self, region: str, ranges: Sequence[tuple[int, int]]) -> None:  # noqa: B027
        """Peers may not read these pieces any more."""

    def view(self, peer: str, region: str, offset: int, size: int) -> torch.Tensor:
        """uint8[size], the peer's own memory. Errors as for `read`."""
        raise TransferError(f"{self.name}: this transport cannot map a peer's memory")

    @abstractmethod
    def describe(self, region: str) -> bytes:
        """What a peer must know to read a region; opaque, sent once per peer."""

    @abstractmethod
    def connect(self, peer: str, region: str, description: bytes) -> Transfer | None:
        """Make a peer's region readable; `peer` is its instance id. Idempotent for equal
        descriptions; a new description replaces the old one (the peer has restarted).

        Returns what to wait for until it is readable, None if it is. `TransferError`, here or from
        that, if the description is no good or the peer cannot be reached.
        """

    @abstractmethod
    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        """Start reading. `TransferError` if the peer is not connected or a range leaves either
        region. The ranges may be many and scattered: they are one transfer."""

    @abstractmethod
    def disconnect(self, peer: str) -> None:
        """Forget a peer; transfers from it fail. Idempotent."""

    @property
    def refused(self) -> int:
        """Messages of peers that made no sense to the transport."""
        return 0

    def poll(self) -> None:  # noqa: B027 — most transports need no help to make progress
        """Serve peers and advance transfers; called at least once per engine step."""

    def meanwhile(self) -> AbstractContextManager[None]:
        """While this is entered the transport polls itself, and must not be called."""
        return nullcontext()

    @property
    def descriptors(self) -> Sequence[int]:
        """File descriptors, readable when `poll` has something to do after an `arm`."""
        return ()

    def arm(self) -> bool:
        """To be called before waiting for `descriptors`; False if there is something to do now."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Release memory, registrations and connections; idempotent."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong at idle (transfers or handles left over), [] if nothing."""


def check_ranges(ranges: Sequence[Range], remote_size: int, local_size: int) -> str | None:
    """What is wrong with the first bad range, None if all lie inside both regions."""
    for remote, local, size in ranges:
        if size <= 0 or remote < 0 or local < 0:
            return f"range {Range(remote, local, size)} is empty or negative"
        if remote + size > remote_size or local + size > local_size:
            return (
                f"range {Range(remote, local, size)} exceeds a region of {remote_size} or "
                f"{local_size} bytes"
            )
    return None


def zeros(nbytes: int, device: str) -> torch.Tensor:
    """uint8[nbytes]. NumPy asks for large pages, torch does not: readers of other processes' memory
    and TCP fill them up to three times as fast."""
    if torch.device(device).type == "cpu":
        return torch.from_numpy(np.zeros(nbytes, np.uint8))
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)
