"""Several masters of one fleet, without the network between them: what this one tells the others,
and what becomes of what they tell.

Each worker talks to one master, its home, or to several. The others know it from the home's word:
they take over its heartbeats, index its events by themselves, and count what the home places
there. Admission queues and failure counts stay local; a breaker that opens, opens everywhere.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from protocol.errors import Unavailable
from protocol.placement import Finished, ScheduleRequest
from protocol.registry import Drain, Heartbeat, InstanceInfo
from services.master.fleet.added_workers import AddedWorkers
from services.master.master import Master
from services.master.placement.reservation import Reservation
from services.master.replication.masters import Homes, OtherMasters
from services.master.replication.messages import (
    Added,
    Beat,
    Change,
    Ended,
    Joined,
    Left,
    Moved,
    Opened,
    Resumed,
)
from services.master.replication.outbox import Outbox
from services.master.replication.placement_sync import share
from services.master.replication.receiver import Receiver

_Cause = Literal["none", "call", "failure", "lapse"]


@dataclass
class Replicator:
    """Tells what happens here, hears the others. Times are s of the caller's monotonic clock."""

    master: Master  # the one that it speaks for
    name: str  # by which the others know it
    enabled: bool = True  # there may be others
    added: AddedWorkers | None = None  # the workers added by hand, if they are shared
    wake: Callable[[], None] = lambda: None  # called when there is something to tell or to fetch
    connected: bool = False  # while it is not, only what lasts is kept to be told
    counts: Counter[str] = field(default_factory=Counter)  # of messages, by kind
    others: OtherMasters = field(init=False)  # who they are, and what they have placed
    homes: Homes = field(init=False)  # which master each worker talks to
    outbox: Outbox = field(init=False)  # what is to be told
    receiver: Receiver = field(init=False)  # applies what the others tell
    _cause: _Cause = "none"  # why workers leave at the moment

    def __post_init__(self) -> None:
        self.others = OtherMasters(self.master)
        self.homes = Homes(self.master.config.lease / 2)
        self.outbox = Outbox(self.wake, self.counts)
        self.receiver = Receiver(
            self.master, self.homes, self.others, self.added, self.counts, self.wake, self.tell
        )

    def tell(self, change: Change) -> None:
        if self.enabled:
            self.outbox.put(change, connected=self.connected)

    def cut_off(self) -> None:
        """The connection is gone, and with it what was true for a short time only."""
        self.connected = False
        self.outbox.keep_lasting()

    @contextlib.contextmanager
    def because(self, cause: _Cause) -> Iterator[None]:
        """Workers that leave meanwhile do so for this cause."""
        before, self._cause = self._cause, cause
        try:
            yield
        finally:
            self._cause = before

    def left(self, info: InstanceInfo) -> None:
        """The registry has forgotten a worker. A lapse is told by its home alone."""
        direct, lapsed = self.homes.forget(info.instance_id), self._cause == "lapse"
        if self._cause in ("call", "failure") or (lapsed and direct):
            failed = self._cause == "failure"
            self.tell(Left(info.instance_id, info.generation, lapsed, failed))

    def joined(self, info: InstanceInfo, now: float) -> None:
        """A worker has registered here."""
        self.homes.speaks_here(info.instance_id, now)
        self.tell(self._joined(info, now))

    def _joined(self, info: InstanceInfo, now: float) -> Joined:
        instance = self.master.registry.instances[info.instance_id]
        age_ms = max(0.0, now * 1e3 - instance.since)
        return Joined(info, self.name, instance.drained, age_ms, instance.says_draining)

    def beat(self, beat: Heartbeat, draining: bool, now: float) -> None:
        """A worker's heartbeat came here."""
        self.homes.speaks_here(beat.instance_id, now)
        told = Heartbeat(
            beat.instance_id, beat.generation, beat.load, draining, beat.drained_by_master,
            beat.stalled, beat.progress, beat.role,
        )  # fmt: skip
        self.tell(Beat(told))

    def drained(self, name: Drain, now: float) -> None:
        """A worker was drained, or taken back, by a call here."""
        info = self.master.registry.instances[name.instance_id].info
        if not name.draining:
            # Apart from `Joined`, by which other masters drain a worker but never take one back.
            self.tell(Resumed(info.instance_id, info.generation))
        self.tell(self._joined(info, now))  # what is written down of it changes too

    def moved(self, info: InstanceInfo, now: float) -> None:
        """A worker is to serve another role, by a decision made here."""
        role = info.stage
        assert role is not None
        self.tell(Moved(info.instance_id, role, info.generation))
        self.repeat(info.instance_id, now)  # what is written down of it changes too

    def check_told(self, instance_id: str) -> None:
        """`Unavailable` if what is decided here of a worker would not reach it."""
        if self.enabled and not self.connected and instance_id in self.homes.elsewhere:
            raise Unavailable(
                "Redis cannot be reached, and the worker talks to another master: ask that one",
                retry_after_s=1.0,
            )

    @property
    def leads(self) -> bool:
        """Whether this master decides on roles: of all that hear one another the first by name;
        none while Redis is away, as another one may be there."""
        return not self.enabled or (self.connected and self.others.all_after(self.name))

    def opened(self, instance_id: str, now_ms: float) -> None:
        """Too many requests placed here have failed there."""
        instance = self.master.registry.instances[instance_id]
        open_ms = max(0.0, instance.open_until - now_ms)
        self.tell(Opened(instance_id, instance.info.generation, open_ms))

    @property
    def _syncs(self) -> bool:
        return self.connected and self.master.config.replica_sync

    def placed(self, request: ScheduleRequest, held: Reservation, now_ms: float) -> None:
        if self._syncs:
            self.tell(share(request, held, now_ms))

    def ended(self, report: Finished) -> None:
        if self._syncs:
            self.tell(Ended(report.request_id, report.stage, report.mm_hashes, report.done))

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        """Told here of a request that was placed elsewhere: who has done their part in it."""
        # Also where --replica-sync is off: the master that has placed it must hear of the end.
        if self.connected:
            ended = Ended(
                report.request_id, report.stage, report.mm_hashes, report.done, stray=True
            )
            self.tell(ended)
        return self.others.finish(report, now_ms)

    def own(self, now: float) -> list[Joined]:
        """Workers that speak to this master."""
        instances = self.master.registry.instances
        return [self._joined(instances[name].info, now) for name in self.homes.here]

    def added_bodies(self) -> list[Added]:
        """What was added by hand, to be said again."""
        bodies = {} if self.added is None else self.added.bodies()
        return [Added(name, body) for name, body in bodies.items()]

    def repeat(self, instance_id: str, now: float) -> None:
        """What was written down of a worker is gone: tell of it again."""
        if instance_id in self.homes.here:
            self.tell(self._joined(self.master.registry.instances[instance_id].info, now))
