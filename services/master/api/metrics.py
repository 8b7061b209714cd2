"""What /metrics of the master shows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Count
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.http.metrics import describe_process
from services.master.events.subscriber import Subscriber
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.master import Master
from services.master.replication.replicator import Replicator

PREFIX = "triptych_master:"
_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1)
_DELAYS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_TOTALS = MappingProxyType(
    {
        "placed": "Requests that were placed.",
        "prompt_tokens": "Prompt tokens of placed requests.",
        "hit_tokens": "Prompt tokens whose KV the chosen worker was expected to hold.",
        "given_up": "Placed requests whose end was not reported within --request-ttl.",
        "lapsed": "Workers whose lease expired.",
    }
)


class MasterMetrics:
    """One registry per master; nothing global."""

    def __init__(
        self, master: Master, events: Subscriber, suspects: Counter[str], replicator: Replicator
    ) -> None:
        self.registry = CollectorRegistry()
        describe_process(self.registry)
        self.registry.register(_Collector(master, events, suspects, replicator))
        self.schedule = Histogram(
            PREFIX + "schedule_seconds",
            "Seconds that placing one request takes.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.replication = Histogram(
            PREFIX + "replication_delay_seconds",
            "Seconds from a change at this master until Redis brings its message back.",
            buckets=_DELAYS,
            registry=self.registry,
        )
        self.errors = Count(
            PREFIX + "errors",
            "Requests that were answered with an error, by error code.",
            ["code"],
            registry=self.registry,
        )

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)


class _Collector(Collector):
    """Reads the master when asked."""

    def __init__(
        self, master: Master, events: Subscriber, suspects: Counter[str], replicator: Replicator
    ) -> None:
        self._suspects = suspects
        self._master = master
        self._events = events
        self._replicator = replicator

    def collect(self) -> Iterator[Metric]:
        master, totals = self._master, self._master.totals
        yield _gauge(
            "requests_waiting", "Requests that wait until a worker is less busy.", master.waiting
        )
        yield _gauge(
            "requests_in_flight",
            "Requests that were placed and have not ended.",
            len(master.ledger),
        )
        for name, text in _TOTALS.items():
            family = CounterMetricFamily(PREFIX + name, text)
            family.add_metric([], getattr(totals, name))
            yield family
        yield _counter(
            "items",
            "Media items that were placed, by where their embeddings come from.",
            "state",
            totals.items,
        )
        yield _counter(
            "refused", "Requests that were refused, by error code.", "code", totals.refused
        )
        yield self._shares_refused()
        yield _counter(
            "refused_workers",
            "Registrations and heartbeats that were refused, by error code.",
            "code",
            master.registry.refused,
        )
        yield _counter(
            "event_messages",
            "Cache event messages that needed attention, by kind.",
            "kind",
            self._events.counts,
        )
        yield self._moves()
        yield _gauge(
            "event_sources_incomplete",
            "Cache event sources of which not all is known that their caches hold.",
            self._events.incomplete,
        )
        yield _counter(
            "suspects",
            "Workers that a proxy could not connect to, by what became of the report.",
            "outcome",
            self._suspects,
        )
        if self._replicator.enabled:
            yield from self._masters()
        yield from self._fleets()

    def _masters(self) -> Iterator[Metric]:
        replicator = self._replicator
        yield _gauge("redis_up", "1 while Redis is reachable, else 0.", float(replicator.connected))
        yield _gauge(
            "masters",
            "Masters that share the fleet, this one included.",
            1 + len(replicator.others),
        )
        yield _gauge(
            "workers_of_others",
            "Workers that are registered with other masters.",
            len(replicator.homes.elsewhere),
        )
        yield _gauge(
            "requests_in_flight_of_others",
            "Requests that other masters have placed and that have not ended.",
            replicator.others.in_flight,
        )
        yield _counter(
            "replication", "Messages between masters, by kind.", "kind", replicator.counts
        )

    def _fleets(self) -> Iterator[Metric]:
        instances = GaugeMetricFamily(
            PREFIX + "instances",
            "Workers by model, role and state.",
            labels=["model", "role", "state"],
        )
        entries = GaugeMetricFamily(
            PREFIX + "index_entries",
            "Keys in the index, by model and kind; host, disk: blocks below workers' KV caches;"
            " refused: those beyond --max-index-entries, since the start.",
            labels=["model", "kind"],
        )
        events = CounterMetricFamily(
            PREFIX + "events",
            "Cache events that were applied, by model and kind; blocks_unmatched: blocks of other"
            " engines that could not be named, so that no request finds them.",
            labels=["model", "kind"],
        )
        for model, fleet in self._master.registry.fleets.items():
            states = Counter(
                (instance.info.role, _state(instance)) for instance in fleet.by_slot.values()
            )
            for (role, state), count in states.items():
                instances.add_metric([model, role, state], count)
            for kind, count in _entries(fleet).items():
                entries.add_metric([model, kind], count)
            for kind, count in dataclasses.asdict(fleet.events.counts).items():
                events.add_metric([model, kind], count)
        yield from (instances, entries, events, self._wanted())

    def _shares_refused(self) -> Metric:
        family = GaugeMetricFamily(
            PREFIX + "largest_refused_share",
            "Share of a model's requests, the largest, that are refused now (--refuse-first).",
            labels=["model"],
        )
        for model, share in self._master.shedding.shares().items():
            family.add_metric([model], share)
        return family

    def _moves(self) -> Metric:
        moves = CounterMetricFamily(
            PREFIX + "role_moves",
            "Workers of the role any that were given another role, by model, role before, role"
            " after, and who said so: load, call, master (another one), worker.",
            labels=["model", "before", "after", "by"],
        )
        for labels, count in self._master.registry.roles.moved.items():
            moves.add_metric(labels, count)
        return moves

    def _wanted(self) -> Metric:
        wanted = GaugeMetricFamily(
            PREFIX + "wanted_workers",
            "Workers that an autoscaler should run, by model and role; combined: those that prefill"
            " and decode. More at once, fewer after --wanted-hold.",
            labels=["model", "role"],
        )
        for model, role, count in self._master.wanted.counts():
            wanted.add_metric([model, role], count)
        return wanted


def _entries(fleet: Fleet) -> dict[str, int]:
    return {
        "blocks": len(fleet.blocks),
        "host": len(fleet.exact.host),
        "disk": len(fleet.exact.disk),
        "media": len(fleet.media),
        "pending": len(fleet.pending),
        "expected": len(fleet.expected),
        "predicted_blocks": len(fleet.predicted.blocks),
        "predicted_media": len(fleet.predicted.media),
        "refused": fleet.exact.refused,
    }


def _state(instance: Instance) -> str:
    if instance.draining:
        return "draining"
    if instance.stalled:
        return "stalled"
    return "broken" if instance.pool.penalty[instance.row] else "up"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
