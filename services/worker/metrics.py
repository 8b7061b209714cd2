"""What /metrics of a worker shows, under vLLM's names with the prefix `triptych:`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from protocol.histogram import Histogram
from protocol.types import GenerateRequest, RequestOutput
from services.engine.messages import Statistics
from services.engine.reports import success
from services.http.metrics import LightHistogram, add_series, describe_process
from services.http.vllm_aliases import OF_WORKERS, VllmAliases
from services.worker.engine_metrics import help_of
from services.worker.media_cache import MediaCache
from services.worker.transfer_metrics import transfer_families

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 1.0)
PREFIX = "triptych:"
_LABELS = ("role", "model")


class _EngineCollector(Collector):
    """The engine's own gauges, counters and histograms, as of the last snapshot."""

    def __init__(self, role: str, model: str) -> None:
        self._of = (role, model)
        self.snapshot: Statistics | None = None

    def collect(self) -> list[Metric]:
        if self.snapshot is None:
            return []
        families: list[Metric] = []
        for name, value in self.snapshot.gauges.items():
            gauge = GaugeMetricFamily(PREFIX + name, help_of(name), labels=_LABELS)
            gauge.add_metric(self._of, value)
            families.append(gauge)
        for name, value in self.snapshot.counters.items():
            counter = CounterMetricFamily(PREFIX + name, help_of(name), labels=_LABELS)
            counter.add_metric(self._of, value)
            families.append(counter)
        for name, series in self.snapshot.histograms.items():
            histogram = HistogramMetricFamily(PREFIX + name, help_of(name), labels=_LABELS)
            add_series(histogram, self._of, series)
            families.append(histogram)
        return families + transfer_families(*self._of, self.snapshot.transfers)


class WorkerMetrics:
    """One registry per worker; nothing global."""

    def __init__(self, role: str, model: str = "", *, vllm_names: bool = False) -> None:
        """`model`: the name of the served model, by which all is labelled. `vllm_names`: metrics
        are shown under vLLM's names too."""
        self.registry = CollectorRegistry()
        describe_process(self.registry)
        self._aliases = VllmAliases(self.registry, PREFIX, OF_WORKERS, model)
        self._has_aliases = vllm_names
        self._of = (role, model)
        self._timelines: dict[str, Timeline] = {}  # of requests under way, by their ids
        self._engine = _EngineCollector(role, model)
        self.registry.register(self._engine)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            # Prometheus' own histograms take 5.3 µs for each token, these 1.2.
            return LightHistogram(PREFIX + name, text, bounds, self.registry, _LABELS).of(
                role, model
            )

        self.ttft = histogram(
            "time_to_first_token_seconds",
            "Seconds from the arrival of a request to its first token.",
            _TTFT,
        )
        self.itl = histogram(
            "inter_token_latency_seconds", "Seconds between two outputs of a request.", _ITL
        )
        self.e2e = histogram(
            "e2e_request_latency_seconds",
            "Seconds from the arrival of a request to its last token.",
            _TTFT,
        )
        self.encode = histogram(
            "encode_time_seconds", "Seconds that encoding the media of a request takes.", _TTFT
        )
        self.finished = self._counter(
            "request_success",
            "Choices that finished without an error, by reason; handed_over: another worker decodes"
            " on.",
            "finished_reason",
        )
        self.errors = self._counter(
            "request_errors", "Requests that were answered with an error, by error code.", "code"
        )
        self.aborted = self._counter(
            "request_aborted", "Requests whose client left before the answer was complete."
        ).labels(*self._of)
        self._describe_media()
        self.in_flight = self._gauge(
            "num_requests_in_flight", "Requests in this worker, queued ones included."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, (*_LABELS, *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(PREFIX + name, text, _LABELS, registry=self.registry).labels(*self._of)

    def _describe_media(self) -> None:
        self.media_bytes = self._gauge(
            "media_cache_bytes", "Bytes of pictures kept to be encoded again (--media-cache-bytes)."
        )
        self._media_hits = 0
        self.media_hits = self._counter(
            "media_cache_hits",
            "Pictures whose embedding was gone and that were encoded again from the bytes kept"
            " here.",
        ).labels(*self._of)

    @contextlib.contextmanager
    def timed(self, request: GenerateRequest, *, hands_over: bool = False) -> Iterator[Timeline]:
        """A request is here for as long as the context lasts. `hands_over`: another worker
        decodes."""
        name, timeline = request.request_id, Timeline(self, request.choices, hands_over)
        # One whose id is in use is about to be refused: the other one keeps its place.
        kept = self._timelines.setdefault(name, timeline)
        try:
            yield timeline
        finally:
            if kept is timeline:
                del self._timelines[name]

    def stop_choice(self, request_id: str, index: int) -> None:
        """A stop string has ended a choice, of which no output will say so."""
        if (timeline := self._timelines.get(request_id)) is not None:
            timeline.stop(index)

    def error(self, code: str) -> None:
        self.errors.labels(*self._of, code).inc()

    def success(self, reason: str) -> None:
        self.finished.labels(*self._of, reason).inc()

    def abort(self) -> None:
        self.aborted.inc()

    def set_in_flight(self, count: int) -> None:
        self.in_flight.set(count)

    def set_media(self, media: MediaCache) -> None:
        self.media_bytes.set(media.size)
        self.media_hits.inc(media.hits - self._media_hits)
        self._media_hits = media.hits

    def observe_encode(self, seconds: float) -> None:
        self.encode.observe(seconds)

    def render(self, snapshot: Statistics | None) -> bytes:
        """Prometheus text format."""
        self._engine.snapshot = snapshot
        text = generate_latest(self.registry)
        return text + self._aliases.render() if self._has_aliases else text


@dataclass
class Timeline:
    """Times of one request, observed as its outputs pass by. `left`: choices that have not ended,
    each of which is counted once."""

    metrics: WorkerMetrics
    left: set[int]
    hands_over: bool = False
    start: float = field(default_factory=time.monotonic)
    last: float | None = None

    def observe(self, outputs: list[RequestOutput]) -> None:
        now = time.monotonic()
        if self.last is None:
            self.metrics.ttft.observe(now - self.start)
        else:
            self.metrics.itl.observe(now - self.last)
        self.last = now
        for output in outputs:
            if output.finish_reason is not None and output.index in self.left:
                self.left.discard(output.index)
                self._count(success(output, hands_over=self.hands_over), now)

    def stop(self, index: int) -> None:
        if index in self.left:
            self.left.discard(index)
            self._count("stop", time.monotonic())

    def _count(self, reason: str, now: float) -> None:
        if reason:
            self.metrics.success(reason)
            if reason != "handed_over":
                self.metrics.e2e.observe(now - self.start)
