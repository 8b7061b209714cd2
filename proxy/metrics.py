"""What /metrics of the proxy shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from protocol.histogram import GAPS, SECONDS, Histogram
from proxy.fleet.fleet import Fleet
from proxy.model_figures import ModelFigures
from proxy.upstream.connection_pool import Traffic
from services.http.metrics import LightHistogram, describe_process
from services.http.vllm_aliases import OF_PROXIES, VllmAliases

PREFIX = "triptych_proxy:"
_STAGES = ("encode", "prefill", "decode")


class Masters(Protocol):
    """Whether a master answers, and how often the proxy has turned to another one."""

    failovers: int

    @property
    def present(self) -> bool: ...


class ProxyMetrics:
    """One registry per proxy; nothing global. `masters` None: the proxy has none. `traffic` is
    counted by those who receive and send."""

    def __init__(
        self, fleet: Fleet, masters: Masters | None = None, vllm_model: str | None = None
    ) -> None:
        """`vllm_model`: the model's name in metrics under vLLM's names, None for none of these."""
        self.registry = CollectorRegistry()
        describe_process(self.registry)
        self._aliases: VllmAliases | None = None
        if vllm_model is not None:
            self._aliases = VllmAliases(self.registry, PREFIX, OF_PROXIES, vllm_model)
        self._fleet = fleet
        self._masters = masters
        self.traffic = Traffic()
        self._shown = Traffic()

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return LightHistogram(PREFIX + name, text, bounds, self.registry).of()

        self.ttft = histogram(
            "time_to_first_token_seconds",
            "Seconds from the arrival of a request to its first output.",
            SECONDS,
        )
        self.itl = histogram(
            "inter_token_latency_seconds", "Seconds between two outputs of a stream.", GAPS
        )
        self.e2e = histogram(
            "e2e_request_latency_seconds",
            "Seconds from the arrival of a request to its end.",
            SECONDS,
        )
        self._in_flight = Gauge(
            PREFIX + "requests_in_flight",
            "Requests in the proxy that are not answered yet, of both dialects.",
            registry=self.registry,
        )
        self.errors = Counter(
            PREFIX + "request_errors",
            "Requests that were answered with an error, by error code.",
            ["code"],
            registry=self.registry,
        )
        self.aborted = Counter(
            PREFIX + "request_aborted",
            "Requests whose client left before the answer was complete.",
            registry=self.registry,
        )
        self._of_workers()
        self._of_calls()
        self.by_model = ModelFigures(PREFIX, self.registry)

    def _of_workers(self) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(PREFIX + name, text, labels, registry=self.registry)

        self._up = gauge(
            "instance_up", "1 while the worker answers health probes, else 0.", "role", "url"
        )
        self._load = gauge(
            "instance_in_flight",
            "Requests of this proxy that the worker has in progress.",
            "role",
            "url",
        )
        self._breaker = gauge(
            "instance_breaker_open",
            "1 while the worker gets no requests because its calls failed, else 0.",
            "role",
            "url",
        )
        self._up_of_role = gauge(
            "workers_up",
            "Workers of the role that are up; where there are none, those that a master could give "
            "it to. A role keeps its series unless its last worker left on purpose.",
            "role",
        )

    def _of_calls(self) -> None:
        """Calls to workers and masters, and bytes of relayed requests."""
        registry = self.registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        self.per_event = LightHistogram(
            PREFIX + "request_time_per_output_event_seconds",
            "Mean seconds between the events of one relayed stream.",
            GAPS,
            registry,
        ).of()
        stages = LightHistogram(
            PREFIX + "stage_seconds",
            "Seconds that a successful call to a worker took, by stage.",
            SECONDS,
            registry,
            ("stage",),
        )
        self.stages = {stage: stages.of(stage) for stage in _STAGES}
        self._client_bytes = counter(
            "client_bytes", "Bytes of the bodies of relayed requests, as received from clients."
        )
        self._upstream_bytes = counter(
            "upstream_bytes", "Bytes sent to workers for relayed requests."
        )
        self.retries = counter("retries", "Attempts after the first one, by stage.", "stage")
        self.upstream_failures = counter(
            "upstream_failures",
            "Calls to workers that failed, by worker role and failure kind.",
            "role",
            "kind",
        )
        if self._masters is not None:
            masters = self._masters
            Gauge(
                PREFIX + "master_present",
                "1 while a master answers, else 0. Of a proxy with --master-url.",
                registry=registry,
            ).set_function(lambda: masters.present)
        self._waiting = Gauge(
            PREFIX + "requests_waiting",
            "Requests that wait in the proxy's own queue.",
            registry=registry,
        )
        self._failovers = counter(
            "master_failovers", "Times that the proxy turned to another master because one failed."
        )
        self._shown_failovers = 0
        self.placements = counter(
            "placements",
            "Requests that were placed, by who placed them (master or proxy).",
            "by",
        )

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        self._waiting.set_function(waiting)

    def watch_in_flight(self, count: Callable[[], int]) -> None:
        self._in_flight.set_function(count)

    def render(self) -> bytes:
        """Prometheus text format."""
        # A counter of the library takes a lock: plain numbers are counted, and added at a scrape.
        traffic, shown = self.traffic, self._shown
        self._client_bytes.inc(traffic.received - shown.received)
        self._upstream_bytes.inc(traffic.sent - shown.sent)
        shown.received, shown.sent = traffic.received, traffic.sent
        if self._masters is not None:
            failovers = self._masters.failovers
            self._failovers.inc(failovers - self._shown_failovers)
            self._shown_failovers = failovers
        for gauge in (self._up, self._load, self._breaker, self._up_of_role):
            gauge.clear()  # those of workers and roles that have left
        for instance in self._fleet.all():
            self._up.labels(instance.role, instance.url).set(instance.up)
            self._load.labels(instance.role, instance.url).set(instance.in_flight)
            self._breaker.labels(instance.role, instance.url).set(not instance.breaker.closed)
        self._count_roles()
        text = generate_latest(self.registry)
        return text if self._aliases is None else text + self._aliases.render()

    def _count_roles(self) -> None:
        fleet = self._fleet
        roles = set(fleet.roles)
        if not fleet.computing():
            roles.add("decode")  # no request can do without
        movable = sum(instance.up and instance.changes_role for instance in fleet.all())
        for role in roles:
            up = sum(instance.up for instance in fleet.by_role[role])
            self._up_of_role.labels(role).set(up or movable)
