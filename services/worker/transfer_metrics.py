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

_LABELS = ("role", "model", "connector", "transport")
_COUNTERS = {
    "bytes": "Bytes received.",
    "copy_seconds": "Those of transfer_seconds in which bytes were moving: transfer_bytes by these"
    " is the bandwidth.",
    "transfers": "Transfers received.",
    "leases_expired": "Leases that expired because no consumer ended them.",
    "evictions": "Entries evicted from the store to make room.",
    "hits": "Lookups that found the entry in the store.",
    "misses": "Lookups that did not find the entry in the store.",
    "refused": "Messages of peers that were refused.",
}
_PREFIX = "triptych:transfer_"


def transfer_families(role: str, model: str, stats: Sequence[TransferStats]) -> list[Metric]:
    """One family per figure, one sample per connector."""
    held = GaugeMetricFamily(
        _PREFIX + "bytes_held", "Bytes that are held for peers.", labels=_LABELS
    )
    failures = CounterMetricFamily(
        _PREFIX + "failures", "Transfers that failed, by cause.", labels=(*_LABELS, "cause")
    )
    seconds = HistogramMetricFamily(
        _PREFIX + "seconds",
        "Seconds from the request for the first byte to the arrival of the last; those in which a"
        " consumer of KV waits for blocks still being computed included.",
        labels=_LABELS,
    )
    counters = {
        name: CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
        for name, text in _COUNTERS.items()
    }
    for one in stats:
        labels = [role, model, one.connector, one.transport]
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
