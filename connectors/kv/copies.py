"""Copies of one request's blocks into their place here, as the producer completes them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from connectors.kv.base import REGION
from connectors.transports.base import Range, Transfer, Transport


def merged(sources: Sequence[int], targets: Sequence[int], size: int) -> list[Range]:
    """Byte ranges of blocks, runs that are contiguous on both sides as one."""
    there, here = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
    starts = np.ones(len(there), np.bool_)
    starts[1:] = (np.diff(there) != 1) | (np.diff(here) != 1)
    first = np.flatnonzero(starts)
    sizes = np.diff(first, append=len(there)) * size
    rows = (there[first] * size).tolist(), (here[first] * size).tolist(), sizes.tolist()
    return list(map(Range, *rows))


class Copies:
    """Blocks of `block_bytes` each. `place` are the blocks here, of the `first` and later ones of
    the request; what lies before is here already."""

    def __init__(self, transport: Transport, block_bytes: int) -> None:
        self._transport = transport
        self._block_bytes = block_bytes
        self._place: Sequence[int] | None = None
        self._first = 0
        self._read = 0
        self._begun = 0.0
        self._copied_at = 0.0
        self._reads: list[Transfer] = []
        self._stale: list[Transfer] = []
        self.copy_s = 0.0
        """Seconds in which bytes were moving."""

    def begin(self, first: int, place: Sequence[int]) -> None:
        self._place, self._first, self._read = place, first, first
        self._begun = time.monotonic()

    def restart(self) -> None:
        """Forget what has been read; it is read again once nothing of it is under way: a late byte
        of the old blocks would land on the new ones."""
        for transfer in self._reads:
            transfer.cancel()
        self._stale += self._reads
        self._reads = []
        self._read = self._first

    def stop(self) -> None:
        """There is no place any more."""
        self.restart()
        self._place = None

    @property
    def placed(self) -> bool:
        return self._place is not None

    @property
    def idle(self) -> bool:
        """Whether no bytes are moving that a request waits for."""
        return not (self._reads or self._stale)

    @property
    def settled(self) -> bool:
        """Whether nothing can be written here any more."""
        return all(transfer.settled for transfer in (*self._reads, *self._stale))

    @property
    def size(self) -> int:
        """Bytes asked for since `begin`, or since the last restart."""
        return (self._read - self._first) * self._block_bytes

    @property
    def elapsed_s(self) -> float:
        """Since `begin`."""
        return time.monotonic() - self._begun

    def advance(self, peer: str | None, ready: Sequence[int]) -> None:
        """Copy what is complete and not under way yet: `ready` are the producer's blocks of the
        request so far. Raises what a read raises."""
        if self._place is None:
            return
        self._stale = [transfer for transfer in self._stale if not transfer.settled]
        # Before they are polled: bytes of those that end here have moved until this moment.
        copying = bool(self._reads)
        self._reads = [transfer for transfer in self._reads if not transfer.poll()]
        self._count(copying)
        if self._stale or self._read >= len(ready) or peer is None:
            return
        sources = ready[self._read :]
        targets = self._place[self._read - self._first :][: len(sources)]
        self._read = len(ready)
        ranges = merged(sources, targets, self._block_bytes)
        transfer = self._transport.read(peer, REGION, ranges)
        # Over shm, unless it is staged, all was done within `read`.
        if not transfer.poll():
            self._reads.append(transfer)
        self._count(True)

    def _count(self, copying: bool) -> None:
        """Add the time since the last call, if bytes were moving in it."""
        now = time.monotonic()
        if copying:
            self.copy_s += now - self._copied_at
        self._copied_at = now
