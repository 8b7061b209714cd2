"""The master on a real clock: what HTTP routes call."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from protocol.curve import Curve
from protocol.errors import TriptychError
from protocol.fleet_key import NO_KEY, FleetKey
from protocol.placement import Finished, FinishedReports, Placement, ScheduleRequest
from protocol.registry import (
    Drain,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    LeaseAnswer,
    StageRole,
    Suspected,
)
from services.http.lame_duck import LameDuck
from services.http.tasks import supervised
from services.master.api.fleet_watch import FleetWatch
from services.master.api.metrics import MasterMetrics
from services.master.api.worker_networks import WorkerNetworks
from services.master.config import MasterConfig
from services.master.events.subscriber import Subscriber
from services.master.fleet.added_workers import AddedWorkers, ProbedInstance
from services.master.listener import MasterListener
from services.master.master import Master
from services.master.placement.reservation import Reservation
from services.master.placement.waiting import PlacementTicket
from services.master.probing.fleet_metrics import FleetMetrics
from services.master.probing.prober import Prober
from services.master.probing.suspects import SuspectProber
from services.master.replication.messages import Added, Removed
from services.master.replication.outbox import Staleness
from services.master.replication.replicator import Replicator

_TICK_S = 0.1
_PUMP_S = 0.005  # reports within it are followed by one look at the queues
_SYNC_S = 1.0  # a master whose Redis is away starts alone


class MasterService(MasterListener):
    """A master, the events it follows, the workers it probes, the masters beside it, and the time.
    Lives on one event loop. It is told of what its master does, and passes that on."""

    def __init__(self, config: MasterConfig, key: FleetKey = NO_KEY) -> None:
        self.config = config
        self._key = key
        self.networks = WorkerNetworks(config, keyed=bool(key))
        self.life = LameDuck(config.drain_delay, config.shutdown_timeout)
        self.master = Master(config, None, self)
        self.watch = FleetWatch(self.master.registry)
        self.subscriber = Subscriber(self.master.registry, Curve.of(key))
        self._to_probe, self._to_tell = asyncio.Event(), asyncio.Event()
        self.added = AddedWorkers(config, self.master.registry, self._to_probe.set)
        self.suspects = SuspectProber(self.master.registry, config)
        self.replicator = Replicator(
            self.master, uuid.uuid4().hex[:12], bool(config.redis_url), self.added,
            self._to_tell.set,
        )  # fmt: skip
        self.metrics = MasterMetrics(
            self.master, self.subscriber, self.suspects.counts, self.replicator
        )
        self.fleet_metrics = FleetMetrics(self.master.registry, config, key)
        self._pumping: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Let things lapse in time; close every socket at the end."""
        prober = Prober(self.added, self.config, self._to_probe, self._key)
        runs = {
            "the clock": self._tick, "the prober": prober.run,
            "the prober of suspects": self.suspects.run,
        }  # fmt: skip
        tasks = [asyncio.create_task(supervised(name, run)) for name, run in runs.items()]
        if self.replicator.enabled:
            tasks += await self._share()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.subscriber.close()

    async def _share(self) -> list[asyncio.Task[None]]:
        """Join the other masters; ready once their workers are known, or soon without."""
        # Imported here: the client takes a tenth of a second to import.
        from services.master.probing.orphan_prober import OrphanProber
        from services.master.replication.redis_link import RedisLink

        staleness = Staleness(self.metrics.replication.observe)
        link = RedisLink(self.replicator, self.config, self._to_tell, staleness)
        orphans = OrphanProber(self.replicator, self.config)
        tasks = [
            asyncio.create_task(supervised("the link to Redis", link.run)),
            asyncio.create_task(supervised("the prober of orphans", orphans.run)),
        ]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_S):
                await link.synced.wait()
        return tasks

    async def _tick(self) -> None:
        due = time.monotonic()
        while True:
            now = time.monotonic()
            if (late_s := now - due) > _TICK_S:
                # While the loop was held up no heartbeat was read, though some wait to be: no lease
                # lapses for that.
                self.master.registry.prolong(late_s * 1e3)
                self.replicator.others.prolong(late_s)
            with self.replicator.because("lapse"):
                self.master.expire(now)
            self.replicator.others.expire(now)
            due = now + _TICK_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def joined(self, info: InstanceInfo) -> None:
        self.subscriber.joined(info)

    def left(self, info: InstanceInfo) -> None:
        self.subscriber.left(info)
        self.replicator.left(info)

    def changed(self) -> None:
        self.watch.changed()

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        self.replicator.placed(request, held, now_ms)

    def over(self, report: Finished) -> None:
        self.replicator.ended(report)

    def opened(self, instance_id: str, now_ms: float) -> None:
        self.replicator.opened(instance_id, now_ms)

    def leads(self) -> bool:
        return self.replicator.leads

    def moved(self, info: InstanceInfo, now_ms: float) -> None:
        self.replicator.moved(info, now_ms / 1e3)

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        return self.replicator.finished_elsewhere(report, now_ms)

    def register(self, info: InstanceInfo) -> LeaseAnswer:
        now = time.monotonic()
        with self.replicator.because("call"):
            answer = self.master.register(info, now)
        self.replicator.joined(info, now)
        self._pump_soon()
        return answer

    def add_instance(self, instance: ProbedInstance) -> None:
        """A worker that cannot register itself was added by hand."""
        self.added.add(instance, time.monotonic())
        self.replicator.tell(Added(instance.name, msgspec.json.encode(instance), True))

    def remove_instance(self, instance: ProbedInstance) -> bool:
        """Forget such a worker at once; False if it was not there."""
        found = self.added.forget(instance.name, time.monotonic())
        if found:
            self.replicator.tell(Removed(instance.name))
        return found

    def heartbeat(self, beat: Heartbeat) -> LeaseAnswer:
        now = time.monotonic()
        answer = self.master.heartbeat(beat, now)
        if answer.known:
            self.replicator.beat(beat, answer.draining, now)
        self._pump_soon()
        return answer

    def deregister(self, name: InstanceName) -> LeaseAnswer:
        with self.replicator.because("failure" if name.failed else "call"):
            return self.master.deregister(name, time.monotonic())

    def drain(self, name: Drain) -> LeaseAnswer:
        answer = self.master.drain(name, time.monotonic())
        if answer.known:
            self.replicator.drained(name, time.monotonic())
        self._pump_soon()
        return answer

    def move(self, instance_id: str, role: StageRole) -> bool:
        """An operator has a worker serve another role; False if it does already. `Unavailable` if
        the worker talks to another master, which cannot be told."""
        self.replicator.check_told(instance_id)
        moved = self.master.move(instance_id, role, time.monotonic())
        self._pump_soon()
        return moved

    def suspect(self, suspected: Suspected) -> LeaseAnswer:
        """A proxy could not connect to a worker."""
        return self.suspects.suspect(suspected, time.monotonic())

    def finished(self, body: FinishedReports) -> LeaseAnswer:
        now = time.monotonic()
        for report in body.reports:
            self.master.finished(report, now)
        self._pump_soon()
        return LeaseAnswer()

    def schedule(self, request: ScheduleRequest) -> Placement | PlacementTicket:
        """A placement, or a ticket for `wait`."""
        start = time.monotonic()
        placed = self.master.schedule(request, start)
        self.metrics.schedule.observe(time.monotonic() - start)
        return placed

    async def wait(self, ticket: PlacementTicket, left: asyncio.Future[Any]) -> Placement | None:
        """The placement of a waiting request, or its error raised; None if the caller has `left`,
        and what was placed for it is given back."""
        gone = True  # also where this wait is cancelled
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket.when_ended(lambda: ended.set_result(None))
        try:
            await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
            if gone := left.done():
                return None
        finally:
            if gone:
                self._abandon(ticket)
        if isinstance(ticket.outcome, TriptychError):
            raise ticket.outcome
        return ticket.outcome

    def _abandon(self, ticket: PlacementTicket) -> None:
        self.master.cancel(ticket)
        if isinstance(ticket.outcome, Placement):
            self.finished(FinishedReports([Finished(ticket.request.request_id, aborted=True)]))

    def _pump_soon(self) -> None:
        """Waiting requests are tried once for many reports that come together."""
        if self._pumping is None and self.master.waiting:
            self._pumping = asyncio.get_running_loop().call_later(_PUMP_S, self._pump)

    def _pump(self) -> None:
        self._pumping = None
        self.master.pump(time.monotonic())
