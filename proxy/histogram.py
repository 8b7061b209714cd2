"""A histogram for paths on which Prometheus's own costs too much.

`prometheus_client.Histogram.observe` takes five times as long, for its lock and its search through
the buckets; a relayed request is counted in a dozen of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80)
"""Upper bounds of buckets for what a request takes."""
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 1.0)
"""And for what lies between two tokens."""


class Series:
    """Observations of one set of labels. Of one thread: nothing is locked."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, observations up to it) of each bucket, and the sum of all values."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._counts)), strict=True)), self._sum


class LightHistogram(Collector):
    """One metric; `of` has what to observe with, by the values of its labels."""

    def __init__(
        self,
        name: str,
        text: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        labels: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._text = text
        self._labels = list(labels)
        self._bounds = tuple(sorted(bounds))
        self._series: dict[tuple[str, ...], Series] = {}
        registry.register(self)

    def of(self, *values: str) -> Series:
        """One value for each label. Shown from now on, without observations too."""
        return self._series.setdefault(values, Series(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, series in self._series.items():
            buckets, total = series.buckets()
            family.add_metric(values, buckets, total)
        yield family
