"""Calls that are due at some time on an engine's clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timers:
    """In order of their time, then of their making."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._made = 0

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._due, (time, self._made, call))

    def run(self, now: float) -> None:
        """Make every call that is due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    @property
    def next_time(self) -> float | None:
        return self._due[0][0] if self._due else None
