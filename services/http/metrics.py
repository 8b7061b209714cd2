"""What a process counts of itself for /metrics, and a histogram that is cheap to observe.

`prometheus_client.Histogram.observe` takes five times as long, for its lock and its search through
the buckets; a relayed request is counted in a dozen of them, a worker's stream once a token.
"""

from __future__ import annotations

import asyncio
import platform
import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from protocol.histogram import Histogram
from services.http.open_files import open_now
from services.http.version import version


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
        self._series: dict[tuple[str, ...], Histogram] = {}
        registry.register(self)

    def of(self, *values: str) -> Histogram:
        """One value for each label. Shown from now on, without observations too."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = Histogram.of(self._bounds)
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, series in self._series.items():
            add_series(family, values, series)
        yield family


def add_series(family: HistogramMetricFamily, labels: Sequence[str], series: Histogram) -> None:
    """Show observations as a series of `family`."""
    names = [*map(floatToGoString, series.bounds), "+Inf"]
    buckets = list(zip(names, map(float, accumulate(series.counts)), strict=True))
    # Prometheus' buckets are cumulative, ours are not.
    family.add_metric(labels, buckets, series.total)


def describe_process(registry: CollectorRegistry) -> None:
    """`process_*` as Prometheus' libraries name them (from /proc: Linux), and
    `triptych_build_info`."""
    ProcessCollector(registry=registry)
    build = Gauge(
        "triptych_build_info",
        "Always 1; the labels are the versions of Triptych and of Python.",
        ["version", "python"],
        registry=registry,
    )
    build.labels(version(), platform.python_version()).set(1)


def process_state() -> dict[str, int]:
    """Of this process, from within its event loop."""
    return {
        "tasks": len(asyncio.all_tasks()),
        "open_files": open_now(),
        "threads": threading.active_count(),
    }
