"""Observations counted in buckets, as Prometheus' histograms show them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80)
"""Upper bounds of buckets for what a request takes."""
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 1.0)
"""And for what lies between two tokens."""
TOKENS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""And for the lengths of prompts and outputs."""


@dataclass(slots=True)
class Histogram:
    """Observations of one set of labels. Of one thread: nothing is locked. `counts` has one bucket
    more than there are upper bounds, and is not cumulative. No `msgspec.Struct`: assignment is
    slower there, and the relay observes several for each request."""

    bounds: tuple[float, ...]  # increasing
    counts: list[int]
    total: float = 0.0  # of all values

    @staticmethod
    def of(bounds: tuple[float, ...]) -> Histogram:
        """An empty one."""
        return Histogram(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        # `le` of Prometheus: a value that equals a bound belongs to its bucket.
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Many at once take a third of the time."""
        counts, bounds, total = self.counts, self.bounds, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.total += total
