"""Virtual time: calls in order of their time, then of their making."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any


class Clock:
    """Seconds from 0. Nothing happens by itself: `run` passes the time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        """`call(*args)` at `time`, which must not have passed."""
        self._made += 1
        heapq.heappush(self._due, (time, self._made, call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, call, *args)

    def time(self) -> float:
        """For those who are given a clock."""
        return self.now

    def run(self, until: float = math.inf) -> None:
        """Make every call that is due up to `until`, or all there are."""
        due, pop = self._due, heapq.heappop
        while due and due[0][0] <= until:
            self.now, _, call, args = pop(due)
            call(*args)
        if until < math.inf:
            self.now = max(self.now, until)
