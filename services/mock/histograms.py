"""A mock worker's histograms in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from protocol.histogram import Histogram


def histogram_lines(labels: str, histograms: Mapping[str, Histogram]) -> Iterator[str]:
    """`labels`: those of all series, as they stand between braces."""
    for name, series in histograms.items():
        bounds = [*(str(float(bound)) for bound in series.bounds), "+Inf"]
        yield f"# TYPE triptych:{name} histogram\n"
        counts = list(accumulate(series.counts))
        for bound, count in zip(bounds, counts, strict=True):
            yield f'triptych:{name}_bucket{{{labels},le="{bound}"}} {count}\n'
        yield f"triptych:{name}_count{{{labels}}} {counts[-1]}\n"
        yield f"triptych:{name}_sum{{{labels}}} {series.total}\n"
