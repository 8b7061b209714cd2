"""What connectors have moved and hold, as Prometheus families."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from connectors.meter import BUCKETS_S, TransferStats

_LABELS = ("role", "connector", "transport")
_COUNTERS = {
    "bytes": "bytes received",
    "transfers": "transfers received",
    "leases_expired": "leases that nobody ended in time",
    "evictions": "entries evicted",
    "hits": "entries that the store held when asked",
    "misses": "entries that the store did not hold when asked",
    "refused": "messages of peers that made no sense",
}
_PREFIX = "triptych:transfer_"


def transfer_families(role: str, stats: Sequence[TransferStats]) -> list[Metric]:
    """One family per figure, one sample per connector."""
    held = GaugeMetricFamily(_PREFIX + "bytes_held", "bytes held for peers", labels=_LABELS)
    failures = CounterMetricFamily(
        _PREFIX + "failures", "transfers that failed", labels=(*_LABELS, "cause")
    )
    seconds = HistogramMetricFamily(
        _PREFIX + "seconds", "from the first byte asked for to the last", labels=_LABELS
    )
    counters = {
        name: CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
        for name, text in _COUNTERS.items()
    }
    for one in stats:
        labels = [role, one.connector, one.transport]
        held.add_metric(labels, one.bytes_held)
        seconds.add_metric(labels, buckets=_buckets(one), sum_value=one.seconds)
        for name, counter in counters.items():
            counter.add_metric(labels, getattr(one, name))
        for cause, count in one.failures.items():
            failures.add_metric([*labels, cause], count)
    return [held, failures, seconds, *counters.values()]


def _buckets(stats: TransferStats) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(stats.buckets), strict=True))
