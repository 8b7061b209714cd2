"""What /metrics of the proxy shows."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from protocol.types import Role
from proxy.fleet.fleet import Fleet

PREFIX = "triptych_proxy:"
_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5, 10, 20, 40, 80)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 1.0)


class ProxyMetrics:
    """One registry per proxy; nothing global."""

    def __init__(self, fleet: Fleet) -> None:
        self._registry = CollectorRegistry()
        self._fleet = fleet

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(PREFIX + name, text, buckets=buckets, registry=self._registry)

        self.ttft = histogram("time_to_first_token_seconds", "time to first token", _SECONDS)
        self.itl = histogram("inter_token_latency_seconds", "time between steps", _GAPS)
        self.e2e = histogram("e2e_request_latency_seconds", "whole request", _SECONDS)
        self._in_flight = Gauge(
            PREFIX + "requests_in_flight", "requests in the proxy", registry=self._registry
        )
        self.errors = Counter(
            PREFIX + "request_errors", "errors by code", ["code"], registry=self._registry
        )
        self.aborted = Counter(
            PREFIX + "request_aborted", "clients that left", registry=self._registry
        )
        self._up = Gauge(
            PREFIX + "instance_up", "1 if healthy", ["role", "url"], registry=self._registry
        )
        self._load = Gauge(
            PREFIX + "instance_in_flight",
            "requests there",
            ["role", "url"],
            registry=self._registry,
        )

        self._of_calls()

    def _of_calls(self) -> None:
        """Calls to workers and masters, and bytes of relayed requests."""
        registry = self._registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        self.per_event = Histogram(
            PREFIX + "request_time_per_output_event_seconds",
            "mean time between events of a relayed stream",
            buckets=_GAPS,
            registry=registry,
        )
        stage = Histogram(
            PREFIX + "stage_seconds",
            "Seconds that a call to a worker took which ended well, by stage.",
            ["stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._stages = {name: stage.labels(name) for name in ("encode", "prefill", "decode")}
        self._client_bytes = counter("client_bytes", "bytes of relayed requests")
        self._upstream_bytes = counter("upstream_bytes", "bytes sent to workers for them")
        self._received = self._sent = 0
        self.retries = counter("retries", "further tries", "stage")
        self.upstream_failures = counter("upstream_failures", "by role and kind", "role", "kind")
        self._master = Gauge(
            PREFIX + "master_present", "1 while a master answers", registry=registry
        )
        self._waiting = Gauge(
            PREFIX + "requests_waiting", "requests in the proxy's own queue", registry=registry
        )
        self._failovers = counter("master_failovers", "masters that failed and were replaced")
        self._failed_over: Callable[[], int] = lambda: 0
        self._counted_failovers = 0
        self.placements = counter("placements", "plans of requests, by who made them", "by")
        self._breaker = Gauge(
            PREFIX + "instance_breaker_open",
            "1 if left alone",
            ["role", "url"],
            registry=registry,
        )

    def received(self, size: int) -> None:
        """Bytes of a relayed request. Cheap: counted when the page is asked for."""
        self._received += size

    def sent(self, size: int) -> None:
        """Bytes sent to a worker for a relayed request."""
        self._sent += size

    def watch_master(self, present: Callable[[], bool], failovers: Callable[[], int]) -> None:
        """`failovers`: how many there have been."""
        self._master.set_function(present)
        self._failed_over = failovers

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        self._waiting.set_function(waiting)

    def watch_in_flight(self, count: Callable[[], int]) -> None:
        self._in_flight.set_function(count)

    def stage_seconds(self, stage: Role, seconds: float) -> None:
        """A call to a worker has ended well."""
        self._stages[stage].observe(seconds)

    def render(self) -> bytes:
        """Prometheus text format."""
        self._client_bytes.inc(self._received)
        self._upstream_bytes.inc(self._sent)
        self._received = self._sent = 0
        failovers = self._failed_over()
        self._failovers.inc(failovers - self._counted_failovers)
        self._counted_failovers = failovers
        for gauge in (self._up, self._load, self._breaker):
            gauge.clear()  # those of workers that have left
        for instance in self._fleet.all():
            self._up.labels(instance.role, instance.url).set(instance.up)
            self._load.labels(instance.role, instance.url).set(instance.in_flight)
            self._breaker.labels(instance.role, instance.url).set(not instance.breaker.closed)
        return generate_latest(self._registry)


class Timeline:
    """Times of one request as its outputs pass by."""

    def __init__(self, metrics: ProxyMetrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        self._last: float | None = None

    @property
    def begun(self) -> bool:
        return self._last is not None

    def step(self) -> None:
        now = time.monotonic()
        if self._last is None:
            self._metrics.ttft.observe(now - self._start)
        else:
            self._metrics.itl.observe(now - self._last)
        self._last = now

    def end(self) -> None:
        self._metrics.e2e.observe(time.monotonic() - self._start)
