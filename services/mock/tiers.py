"""Stores for KV below the pool that hold nothing: copies end when they would have."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.tiers.base import Copied, TierCopy, TierName
from services.engine.scheduling.seams import Clock
from services.mock.timers import Timers


class _TimedCopy(TierCopy):
    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self.done: Copied | None = None

    def end(self, seconds: float) -> None:
        self.done = Copied([True] * self._blocks, seconds)

    def poll(self) -> Copied | None:
        return self.done


class TimedStore:
    """One copy at a time, each of so many seconds a block."""

    def __init__(
        self, name: TierName, capacity: int, block_s: float, clock: Clock, timers: Timers
    ) -> None:
        self.name: TierName = name
        self.medium = {"host": "CPU", "disk": "DISK"}[name]
        self.capacity = capacity
        self._block_s = block_s
        self._clock = clock
        self._timers = timers
        self._busy_until = 0.0

    def kept(self) -> list[bytes]:
        """Nothing outlives a mock worker."""
        return []

    def save(self, rows: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> TierCopy:
        return self._copy(len(rows))

    def load(self, keys: Sequence[bytes], slots: Sequence[int], blocks: Sequence[int]) -> TierCopy:
        return self._copy(len(blocks))

    def _copy(self, blocks: int) -> TierCopy:
        now = self._clock()
        self._busy_until = max(now, self._busy_until) + blocks * self._block_s
        copy = _TimedCopy(blocks)
        self._timers.at(self._busy_until, lambda: copy.end(blocks * self._block_s))
        return copy

    def remove(self, keys: Sequence[bytes]) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""
