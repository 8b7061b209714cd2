"""What every simulated worker has: a place in time, cache events, and how busy it was."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import PATCHES_PER_TOKEN, TraceRequest, short_keys
from protocol.kv_events import (
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
)
from protocol.registry import Load
from services.mock.kv_blocks import Holding, KVBlocks
from services.mock.timing import Noise

WINDOW_S = 10.0


class Stage:
    """`publish` takes cache events, whoever listens. `held` is the time that requests spent queued
    or running here, `worked` the time of computing, both in seconds by window of `WINDOW_S`."""

    def __init__(
        self, name: str, profile: Profile, clock: Clock, seed: int, num_blocks: int = 0
    ) -> None:
        self.name = name
        self.profile = profile
        self.clock = clock
        self.noise = Noise(profile.jitter, seed)
        self.rates = profile.timing.rates(PATCHES_PER_TOKEN, profile.row_bytes)
        self.blocks = KVBlocks(num_blocks, profile.block_size)
        self.publish: Callable[[CacheEvent], None] = lambda event: None
        self.held: list[float] = []
        self.worked: list[float] = []
        self._count = 0
        self._since = 0.0

    def load(self) -> Load:
        """As a worker reports it."""
        raise NotImplementedError

    def count(self, change: int) -> None:
        """So many requests more are queued or running here."""
        if self._count:
            _spread(self.held, self._since, self.clock.now, self._count)
        self._since = self.clock.now
        self._count += change

    def busy(self, start: float, end: float) -> None:
        """Computing from `start` to `end`."""
        _spread(self.worked, start, end, 1)

    def _name(self, request: TraceRequest, holding: Holding, first: int, last: int) -> None:
        """Blocks `first` to `last` - 1 of a request are complete, and can be reused."""
        name, keys, short = self.blocks.name, request.keys, request.short
        fresh: list[int | bytes] = [
            short[i] for i in range(first, last) if name(holding, keys[i])
        ]  # fmt: skip
        if fresh:
            self.publish(BlockStored(fresh, medium="GPU"))

    def _evicted(self) -> None:
        removed = self.blocks.removed
        if removed:
            self.publish(BlockRemoved([*short_keys(removed)], "GPU"))
            removed.clear()

    def _media(self, changes: list[tuple[str, int]]) -> None:
        for mm_hash, rows in changes:
            size = rows * self.profile.row_bytes
            stored = EmbeddingStored(mm_hash, rows, size, "GPU") if rows else None
            self.publish(stored or EmbeddingRemoved(mm_hash, "GPU"))
        changes.clear()


def _spread(windows: list[float], start: float, end: float, weight: float) -> None:
    """Add `weight` times the time from `start` to `end` to the windows it falls into."""
    last = int(end / WINDOW_S)
    while len(windows) <= last:
        windows.append(0.0)
    first = int(start / WINDOW_S)
    for window in range(first, last + 1):
        inside = min(end, (window + 1) * WINDOW_S) - max(start, window * WINDOW_S)
        windows[window] += weight * inside
