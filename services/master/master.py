"""The master without its sockets: everything it decides, on a clock that the caller passes in.

No call blocks, none looks at the time by itself, and the only randomness is the generator given at
the start, so that a simulation drives the very same code. `now` is in seconds, of any monotonic
clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from protocol.errors import TriptychError, Unavailable
from protocol.kv_events import EventBatch
from protocol.placement import Finished, Placement, ScheduleRequest
from protocol.registry import Drain, Heartbeat, InstanceInfo, InstanceName, LeaseAnswer, StageRole
from services.admission.tenant_shares import TenantShares
from services.master.config import MasterConfig
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.registry import Registry
from services.master.fleet.role_mover import RoleMover
from services.master.fleet.wanted_workers import WantedWorkers
from services.master.listener import MasterListener
from services.master.placement.ledger import Ledger
from services.master.placement.objectives import settle_objectives
from services.master.placement.placer import Placer
from services.master.placement.policies.factory import load_policy
from services.master.placement.refusals import AllBusy, TooLate, check_request
from services.master.placement.shedding import Shedding
from services.master.placement.totals import Totals
from services.master.placement.waiting import PlacementTicket, WaitingRequests

_T = TypeVar("_T")
_Place = Callable[[Fleet, ScheduleRequest, float], _T]


class Master:
    """`listener` is told of what happens."""

    def __init__(
        self,
        config: MasterConfig,
        rng: random.Random | None = None,
        listener: MasterListener | None = None,
    ) -> None:
        self.config = config
        self._listener = listener or MasterListener()
        self.registry = Registry(config, self._listener)
        self._shares = TenantShares(config.tenant_share)
        self.ledger = Ledger(self._listener.over, self._shares)
        self.totals = Totals()
        self.queues: dict[str, WaitingRequests] = {}
        self.shedding = Shedding(config)
        self.wanted = WantedWorkers(config)
        self.mover = RoleMover(config)
        policy = load_policy(config, rng or random.Random(config.seed or None))
        self._placer = Placer(config, policy)

    def register(self, info: InstanceInfo, now: float, lease_s: float | None = None) -> LeaseAnswer:
        return self.registry.register(info, now * 1e3, lease_s)

    def heartbeat(self, beat: Heartbeat, now: float) -> LeaseAnswer:
        return self.registry.heartbeat(beat, now * 1e3)

    def deregister(self, name: InstanceName, now: float) -> LeaseAnswer:
        return self.registry.deregister(name)

    def drain(self, name: Drain, now: float) -> LeaseAnswer:
        return self.registry.drain(name, now * 1e3)

    def move(self, instance_id: str, role: StageRole, now: float) -> bool:
        """A worker is to serve another role, by a call; False if it does already.
        `InvalidRequest` if it cannot."""
        instance = self.registry.roles.check(instance_id, role)
        return self._move(instance, role, now * 1e3, "a call to the master", "call")

    def _move(
        self, instance: Instance, role: StageRole, now_ms: float, cause: str, by: str
    ) -> bool:
        moved = self.registry.roles.move(instance, role, now_ms, cause, by)
        if moved:
            self._listener.moved(instance.info, now_ms)
        return moved

    def apply(self, info: InstanceInfo, batch: EventBatch, source: int = 0) -> bool:
        """Cache events of one source of a worker; False if it is not registered
        any more, or has restarted since."""
        return self.registry.apply(info.instance_id, info.generation, batch, source)

    def forget_caches(self, info: InstanceInfo, source: int = 0, *, blocks: bool) -> None:
        """Events of a source were lost: its blocks, or its embeddings, are unknown."""
        self.registry.forget_caches(info.instance_id, info.generation, source, blocks=blocks)

    def place_at_once(self, request: ScheduleRequest, now: float) -> Placement | None:
        """Place a request; None if it would have to wait. Raises as `schedule`."""
        return self._counted(self._place_at_once, request, now)

    def schedule(self, request: ScheduleRequest, now: float) -> Placement | PlacementTicket:
        """Place a request, or let it wait: a ticket ends in a later `pump` or `expire`.

        Raises `InvalidRequest`, `ModelNotFound`, `RateLimited`, `Unavailable`, `DeadlineExceeded`.
        """
        return self._counted(self._schedule, request, now)

    def _counted(self, place: _Place[_T], request: ScheduleRequest, now: float) -> _T:
        try:
            return place(self._fleet_of(request, now * 1e3), request, now * 1e3)
        except TriptychError as error:
            self._count_refused(request.model, error)
            raise

    def _fleet_of(self, request: ScheduleRequest, now_ms: float) -> Fleet:
        """Of the model that a request names; raises if the request is wrong or there are too many.
        What it leaves open is filled in."""
        fleet, adapter = self.registry.resolve(request.model)
        request.model = fleet.model  # stays the one meant when another model comes
        request.adapter = request.adapter or adapter
        check_request(request)
        if len(self.ledger) >= self.config.max_in_flight:
            raise Unavailable("the master has reached --max-in-flight", retry_after_s=1.0)
        settle_objectives(request, self.config)
        self._shares.asks(request.tenant, now_ms)
        self.shedding.check(fleet, request)
        return fleet

    def _place_at_once(
        self, fleet: Fleet, request: ScheduleRequest, now_ms: float
    ) -> Placement | None:
        if self.queues.get(fleet.model):
            return None
        try:
            return self._place(fleet, request, now_ms)
        except (AllBusy, TooLate) as error:
            if isinstance(error, AllBusy) and not self.config.max_queue:
                raise
            return None

    def _schedule(
        self, fleet: Fleet, request: ScheduleRequest, now_ms: float
    ) -> Placement | PlacementTicket:
        waiting = self.queues.get(fleet.model)
        # While others wait the request stands in line: placed at once it would overtake them.
        if waiting is None or not len(waiting):
            try:
                return self._place(fleet, request, now_ms)
            except AllBusy as error:
                if not self.config.max_queue:
                    raise
                return self._wait(fleet, request, now_ms, error.retry_after_s or 1.0)
            except TooLate as error:
                return self._waiting(fleet).push_late(request, now_ms, error)
        ticket = self._wait(fleet, request, now_ms, 1.0)
        # By its priority or its tenant's share it may be the first in line, and there be room.
        self._pump(fleet, waiting, now_ms)
        return ticket

    def _wait(
        self, fleet: Fleet, request: ScheduleRequest, now_ms: float, retry_after_s: float
    ) -> PlacementTicket:
        waiting = self._waiting(fleet)
        return waiting.push(request, now_ms, retry_after_s, fleet.running_at_once())

    def _waiting(self, fleet: Fleet) -> WaitingRequests:
        return self.queues.setdefault(fleet.model, WaitingRequests(self.config))

    def _place(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> Placement:
        self.ledger.release(request.request_id, now_ms, done=False)
        # After the release: a retry's own earlier attempt must not use up its tenant's share.
        if self._shares.limit and not self._shares.allows(
            request.tenant, fleet.running_at_once(), now_ms
        ):
            raise AllBusy("others ask too, and your share is used up", retry_after_s=1.0)
        placement, held = self._placer.place(fleet, request, now_ms)
        self.ledger.hold(request.request_id, held, now_ms)
        try:
            self._listener.placed(request, held, now_ms)
        # The caller gets no placement, so no report would ever end this one.
        except BaseException:
            self.ledger.release(request.request_id, now_ms, done=False)
            raise
        self.shedding.placed(fleet.model)
        self.totals.count(request, placement)
        return placement

    def finished(self, report: Finished, now: float) -> None:
        """Placed stages have ended: load goes down, failures count towards breakers."""
        now_ms = now * 1e3
        self.registry.breakers.failed(report.failed, now_ms)
        # None: unknown here, as another master may have placed it. An empty list is an answer.
        workers = self.ledger.finish(report, now_ms)
        if workers is None:
            workers = self._listener.finished_elsewhere(report, now_ms)
        for name in workers:
            self.registry.breakers.succeeded(name)

    def pump(self, now: float) -> None:
        """Place waiting requests as far as workers have room."""
        for model, queue in list(self.queues.items()):
            if model in self.registry.fleets:
                self._pump(self.registry.fleets[model], queue, now * 1e3)

    def _pump(self, fleet: Fleet, waiting: WaitingRequests, now_ms: float) -> None:
        def place(request: ScheduleRequest) -> Placement:
            placement = self._place(fleet, request, now_ms)
            waiting.placed(placement.ttft_ms)
            return placement

        waiting.pump(place, now_ms, partial(self._count_refused, fleet.model))

    def _count_refused(self, model: str, error: TriptychError) -> None:
        self.totals.refused[error.code] += 1
        self.shedding.refused(model, error)

    def cancel(self, ticket: PlacementTicket) -> None:
        """The caller has left."""
        waiting = self.queues.get(ticket.request.model)
        if waiting is not None:
            waiting.cancel(ticket)

    def expire(self, now: float) -> None:
        """Let leases, predictions, charges and waiting requests lapse; then `pump`. Call often."""
        now_ms = now * 1e3
        # Workers and charges first, the queues last: `pump` then sees the room that is left.
        self.totals.lapsed += len(self.registry.expire(now_ms))
        self.totals.given_up += self.ledger.expire(now_ms)
        for fleet in self.registry.fleets.values():
            fleet.expire(now_ms)
        for model, queue in self.queues.items():
            queue.expire(now_ms, partial(self._count_refused, model))
        self.queues = {model: queue for model, queue in self.queues.items() if len(queue)}
        self.shedding.forget(self.registry.fleets.keys())
        self.pump(now)
        waiting = {model: len(queue) for model, queue in self.queues.items()}
        self.wanted.observe(self.registry.fleets, waiting, now_ms)
        if self.config.elastic:
            self._move_by_load(waiting, now_ms)

    def _move_by_load(self, waiting: Mapping[str, int], now_ms: float) -> None:
        fleets, leads = self.registry.fleets, self._listener.leads()
        for move in self.mover.look(fleets, waiting, now_ms, leads=leads):
            self._move(move.instance, move.role, now_ms, move.cause, "load")

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))
