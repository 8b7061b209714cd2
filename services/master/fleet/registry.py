"""The registered workers: their leases, drains and names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from protocol.errors import InvalidRequest, Unavailable
from protocol.kv_events import EventBatch
from protocol.logs import worker_line
from protocol.registry import Drain, Heartbeat, InstanceInfo, InstanceName, LeaseAnswer, Load
from services.master.config import MasterConfig
from services.master.fleet.availability import Availability
from services.master.fleet.changelog import Changelog, FleetListener
from services.master.fleet.circuit_breakers import CircuitBreakers
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.model_names import ModelNames
from services.master.fleet.roles import Roles
from services.master.fleet.validation import NAMES, check_info, check_load, same_process

logger = logging.getLogger(__name__)
_MODELS = 256  # any registration may name a new one
_Claim = TypeVar("_Claim")


@dataclass
class Registry:
    """All registered workers. Times are ms of the caller's monotonic clock."""

    config: MasterConfig  # the master's
    listener: FleetListener = field(default_factory=FleetListener)  # is told of changes
    instances: dict[str, Instance] = field(default_factory=dict)  # by id
    fleets: dict[str, Fleet] = field(default_factory=dict)  # by model
    # Claims that cannot be true, by error code
    refused: Counter[str] = field(default_factory=Counter)
    changelog: Changelog = field(init=False)  # for those who follow the registry
    breakers: CircuitBreakers = field(init=False)  # keep requests from workers where they failed
    roles: Roles = field(init=False)  # of workers that may have several
    availability: Availability = field(init=False)  # who drains or stalls
    _by_url: dict[str, str] = field(default_factory=dict)
    _names: ModelNames = field(default_factory=ModelNames)

    def __post_init__(self) -> None:
        self.changelog = Changelog(self.listener.changed)
        self.breakers = CircuitBreakers(
            self.config, self.instances, self.changelog, self.listener.opened
        )
        self.availability = Availability(self.breakers, self.changelog)
        self.roles = Roles(self.config, self.instances, self.fleets, self.changelog)

    def fleet(self, model: str) -> Fleet:
        """As `resolve`, for any adapter."""
        return self.resolve(model)[0]

    def resolve(self, name: str) -> tuple[Fleet, str]:
        """(the fleet that is meant, the adapter or ""), as `ModelNames.resolve`."""
        return self._names.resolve(name, self.fleets)

    def register(
        self, info: InstanceInfo, now_ms: float, lease_s: float | None = None
    ) -> LeaseAnswer:
        """Add a worker, or renew it. A known one that has restarted has empty caches."""
        self._check(check_info, info)
        lease = self.config.lease if lease_s is None else lease_s
        known = self.instances.get(info.instance_id)
        if known is not None and known.info.url != info.url:
            self.refused["duplicate_instance"] += 1
            raise InvalidRequest(
                f"instance_id '{info.instance_id}' is taken by the worker at {known.info.url}",
                param="instance_id",
                code="duplicate_instance",
            )
        if known is not None and same_process(known.info, info):
            self._name(known, info)
            self.roles.heard(known, info.stage, now_ms)
            return self._renew(known, info.load, now_ms, lease)
        if known is None and len(self.instances) >= self.config.max_instances:
            self.refused["too_many_instances"] += 1
            raise Unavailable(
                "the fleet has reached --max-instances", retry_after_s=self.config.lease
            )
        # By its URL too: who comes back under another id answers there instead of the old one.
        for old in self.before(info):
            self._remove(old, "it restarted, or another worker has its URL")
        self._add(info, now_ms, lease)
        return LeaseAnswer(True, lease, role=info.stage)

    def _name(self, known: Instance, info: InstanceInfo) -> None:
        """Aliases and adapters come and go while a worker lives."""
        names = {field: getattr(info, field) for field in NAMES}
        if any(getattr(known.info, field) != value for field, value in names.items()):
            # Under the names that it was added with, before they are replaced.
            self._names.remove(known.info)
            known.info = msgspec.structs.replace(known.info, **names)
            self._names.add(known.info)
            self.changelog.note(info.instance_id)

    def rename(self, info: InstanceInfo) -> None:
        """A known worker serves the model by these names, and these adapters."""
        known = self.instances.get(info.instance_id)
        if known is not None:
            self._name(known, info)

    def before(self, info: InstanceInfo) -> list[Instance]:
        """Whose place a worker takes that is not known as it is: that of its id and its URL."""
        found = [self.instances.get(info.instance_id), self.at(info.url)]
        return [known for known in dict.fromkeys(found) if known is not None]

    def at(self, url: str) -> Instance | None:
        """The worker that answers there."""
        return self.instances.get(self._by_url.get(url, ""))

    def _add(self, info: InstanceInfo, now_ms: float, lease_s: float) -> None:
        if info.model not in self.fleets:
            self._forget_empty_fleets()
            self.fleets[info.model] = Fleet(info.model, self.config)
        instance = self.fleets[info.model].add(info, now_ms, lease_s * 1e3)
        self.instances[info.instance_id] = instance
        self._by_url[info.url] = info.instance_id
        self._names.add(info)
        self.changelog.note(info.instance_id)
        worker_line(logger, logging.INFO, "joined", info.role, info.url, f"serves {info.model}")
        self.listener.joined(info)

    def _forget_empty_fleets(self) -> None:
        if len(self.fleets) >= _MODELS:
            for model in [m for m, fleet in self.fleets.items() if not fleet.by_slot]:
                del self.fleets[model]

    def heartbeat(self, beat: Heartbeat, now_ms: float) -> LeaseAnswer:
        """`known` false if the worker has not registered here since it started."""
        self._check(check_load, beat.load)
        instance = self._in_generation(beat.instance_id, beat.generation)
        if instance is None:
            return LeaseAnswer(False)
        self.availability.heard(instance, beat, now_ms)
        self.roles.heard(instance, beat.role, now_ms)
        return self._renew(instance, beat.load, now_ms, self.config.lease)

    def _renew(self, instance: Instance, load: Load, now_ms: float, lease_s: float) -> LeaseAnswer:
        instance.lease_until = now_ms + lease_s * 1e3
        # Before the report, which brings what the worker has measured.
        measured = instance.measures_itself
        instance.pool.report(instance.row, load, now_ms)
        if not measured and instance.measures_itself:
            self.fleets[instance.info.model].first_measured()
        return LeaseAnswer(True, lease_s, instance.draining, instance.resumed, instance.info.stage)

    def touch(self, instance_id: str, now_ms: float, lease_s: float) -> bool:
        """Renew the lease of a worker that was probed and tells no load; False if unknown."""
        instance = self.instances.get(instance_id)
        if instance is not None:
            instance.lease_until = now_ms + lease_s * 1e3
        return instance is not None

    def observed(self, instance_id: str, load: Load, now_ms: float) -> None:
        """What was read of the load of a worker that does not report."""
        self._check(check_load, load)
        instance = self.instances.get(instance_id)
        if instance is not None:
            instance.pool.observe(instance.row, load, now_ms)

    def prolong(self, by_ms: float) -> None:
        """No worker could be heard for so long."""
        for instance in self.instances.values():
            instance.lease_until += by_ms

    def deregister(self, name: InstanceName) -> LeaseAnswer:
        instance = self.named(name.instance_id, name.generation)
        if instance is not None:
            self._remove(instance, "it deregistered", retired=not name.failed)
        return LeaseAnswer(instance is not None)

    def drain(self, name: Drain, now_ms: float) -> LeaseAnswer:
        """No new work; what it caches can still be fetched until it leaves. Or, where `draining` is
        false, work again."""
        instance = self.named(name.instance_id, name.generation)
        if instance is None:
            return LeaseAnswer(False)
        self.availability.drain(instance, name.draining, now_ms)
        return LeaseAnswer(True, self.config.lease, instance.draining, instance.resumed)

    def named(self, instance_id: str, generation: str) -> Instance | None:
        """A worker, if it is known in that generation; "" is any."""
        if not generation:
            return self.instances.get(instance_id)
        return self._in_generation(instance_id, generation)

    def _in_generation(self, instance_id: str, generation: str) -> Instance | None:
        """None also if the worker has restarted since, or had not yet."""
        instance = self.instances.get(instance_id)
        return instance if instance and instance.info.generation == generation else None

    def _remove(self, instance: Instance, cause: str, retired: bool = False) -> None:
        info = instance.info
        self.fleets[info.model].remove(instance)
        del self.instances[info.instance_id]
        self.breakers.forget(info.instance_id)
        self._names.remove(info)
        if self._by_url.get(info.url) == info.instance_id:
            del self._by_url[info.url]
        self.changelog.drop(info.instance_id, retired or instance.drained)
        worker_line(logger, logging.INFO, "left", info.role, info.url, cause)
        self.listener.left(info)

    def expire(self, now_ms: float) -> list[str]:
        """Forget workers whose lease has lapsed; their ids. Breakers that have waited close."""
        gone = [i for i in self.instances.values() if i.lease_until <= now_ms]
        for instance in gone:
            self._remove(instance, "its lease expired: no heartbeat, or no probe answered")
        self.breakers.close_due(now_ms)
        return [instance.info.instance_id for instance in gone]

    def apply(self, instance_id: str, generation: str, batch: EventBatch, source: int = 0) -> bool:
        """Cache events of a worker's `source`, by its place in `events`; False if the worker is
        not registered in that generation."""
        instance = self._in_generation(instance_id, generation)
        if instance is None:
            return False
        self.fleets[instance.info.model].events.apply(instance, batch, source)
        return True

    def forget_caches(
        self, instance_id: str, generation: str, source: int = 0, *, blocks: bool
    ) -> None:
        """A gap in its events cannot be filled: what the source said before does not count."""
        instance = self._in_generation(instance_id, generation)
        if instance is None:
            return
        if blocks:
            instance.forget_blocks(source)
        else:
            instance.held_media.drop(source)

    def _check(self, check: Callable[[_Claim], None], claim: _Claim) -> None:
        """What is refused is counted."""
        try:
            check(claim)
        except InvalidRequest as error:
            self.refused[error.code] += 1
            raise
