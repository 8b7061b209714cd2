"""Several masters of one fleet, without the network between them: what this one tells the others,
and what becomes of what they tell.

Each worker talks to one master, its home, or to several. The others know it from the home's word:
they take over its heartbeats, index its events by themselves, and count what the home places
there. Admission queues and failure counts stay local; a breaker that opens, opens everywhere.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from protocol.errors import InvalidRequest, TriptychError
from protocol.registry import (
    Drain,
    Finished,
    Heartbeat,
    InstanceInfo,
    InstanceName,
    ScheduleRequest,
)
from services.master.fleet.added_workers import AddedWorkers
from services.master.fleet.registry import same_life
from services.master.fleet.validation import check_newer
from services.master.master import Master
from services.master.placement.held import Held
from services.master.replication.masters import OtherMasters
from services.master.replication.messages import (
    Added,
    Beat,
    Change,
    Ended,
    Joined,
    Kept,
    Left,
    Opened,
    Placed,
    Removed,
    Resumed,
)
from services.master.replication.placement_sync import share

_MAX_OUT = 100_000
_Cause = Literal["none", "call", "lapse"]


@dataclass(slots=True)
class Home:
    """Which master speaks for a worker, and when it last did (s)."""

    master: str
    heard: float


@dataclass
class Replicator:
    """`added`: the workers added by hand, if they are shared. `wake` is called when there is
    something to `take`. Times are seconds of the caller's monotonic clock. Unless `enabled` there
    are no others; while not `connected` only departures are kept to be told."""

    master: Master
    name: str
    enabled: bool = True
    added: AddedWorkers | None = None
    wake: Callable[[], None] = lambda: None
    connected: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    homes: dict[str, Home] = field(default_factory=dict)
    others: OtherMasters = field(init=False)
    wanted: set[str] = field(default_factory=set)
    _direct: dict[str, float] = field(default_factory=dict)
    _out: deque[Change] = field(default_factory=deque)
    _cause: _Cause = "none"

    def __post_init__(self) -> None:
        self.others = OtherMasters(self.master)

    def tell(self, change: Change) -> None:
        if not self.enabled or not (self.connected or isinstance(change, Left | Removed)):
            return
        if len(self._out) >= _MAX_OUT:
            self.counts["dropped"] += 1
            return
        self._out.append(change)
        self.wake()

    def take(self, most: int = _MAX_OUT) -> list[Change]:
        """What is to be told, in order."""
        return [self._out.popleft() for _ in range(min(most, len(self._out)))]

    def untold(self, changes: Sequence[Change]) -> None:
        """These could not be told after all. Departures are not said again by anybody."""
        self._out.extendleft(c for c in reversed(changes) if isinstance(c, Left | Removed))

    def cut_off(self) -> None:
        """The connection is gone, and with it what was true for a short time only."""
        self.connected = False
        self.untold(self.take())

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
        direct = self._direct.pop(info.instance_id, None) is not None
        self.homes.pop(info.instance_id, None)
        if self._cause == "call" or (self._cause == "lapse" and direct):
            self.tell(Left(info.instance_id, info.generation, self._cause == "lapse"))

    def joined(self, info: InstanceInfo, now: float) -> None:
        """A worker has registered here."""
        self._direct[info.instance_id] = now
        self.homes.pop(info.instance_id, None)
        self.tell(self._joined(info, now))

    def _joined(self, info: InstanceInfo, now: float) -> Joined:
        instance = self.master.registry.instances[info.instance_id]
        return Joined(info, self.name, instance.draining, max(0.0, now * 1e3 - instance.since))

    def beat(self, beat: Heartbeat, draining: bool, now: float) -> None:
        """A worker's heartbeat came here."""
        self._direct[beat.instance_id] = now
        self.homes.pop(beat.instance_id, None)
        told = Heartbeat(
            beat.instance_id, beat.generation, beat.load, draining, beat.drained_by_master,
            beat.stalled, beat.progress,
        )  # fmt: skip
        self.tell(Beat(told))

    def drained(self, name: Drain, now: float) -> None:
        """A worker was drained, or taken back, by a call here."""
        info = self.master.registry.instances[name.instance_id].info
        if not name.draining:
            self.tell(Resumed(info.instance_id, info.generation))
        self.tell(self._joined(info, now))  # what is written down of it changes too

    def opened(self, instance_id: str, now_ms: float) -> None:
        """Too many requests placed here have failed there."""
        instance = self.master.registry.instances[instance_id]
        open_ms = max(0.0, instance.open_until - now_ms)
        self.tell(Opened(instance_id, instance.info.generation, open_ms))

    def placed(self, request: ScheduleRequest, held: Held, now_ms: float) -> None:
        if self.connected:
            self.tell(share(request, held, now_ms))

    def ended(self, report: Finished) -> None:
        if self.connected:
            self.tell(Ended(report.request_id, report.stage, report.mm_hashes, report.done))

    def finished_elsewhere(self, report: Finished, now_ms: float) -> list[str]:
        """Told here of a request that was placed elsewhere: who has done their part in it."""
        if self.connected:
            ended = Ended(
                report.request_id, report.stage, report.mm_hashes, report.done, stray=True
            )
            self.tell(ended)
        return self.others.finish(report, now_ms)

    def own(self, now: float) -> list[Joined]:
        """Workers that speak to this master."""
        instances = self.master.registry.instances
        return [self._joined(instances[name].info, now) for name in self._direct]

    def speaks_to_us(self, instance_id: str, now: float) -> bool:
        """Whether a worker was lately heard of without other masters."""
        heard = self._direct.get(instance_id)
        return heard is not None and now - heard < self.master.config.lease / 2

    def hear_all(self, sender: str, changes: Sequence[Change], now: float) -> None:
        """A message; of its changes those that cannot be true are counted and change nothing."""
        self.others.greet(sender, now)
        for change in changes:
            try:
                self.hear(sender, change, now)
            except TriptychError as error:
                self.refuse(error)

    def refuse(self, error: TriptychError) -> None:
        self.counts[f"refused_{error.code}"] += 1

    def hear(self, sender: str, change: Change, now: float) -> None:
        """Raises `TriptychError` for what cannot be true here; nothing has changed then."""
        match change:
            case Joined():
                self.learn(change, now, self.master.config.lease)
            case Beat():
                self._hear_beat(sender, change.beat, now)
            case Kept():
                self._want(change.worker.info.instance_id, change.worker.info.generation)
            case Left():
                self._hear_left(change, now)
            case Resumed():
                resumed = Drain(change.instance_id, change.generation, draining=False)
                self.master.drain(resumed, now)
            case Opened():
                self._hear_opened(change, now)
            case Placed():
                self.others.placed(sender, change, now)
            case Ended():
                self.others.ended(sender, change, now)
            case Added():
                self.learn_added(change.body, now, fresh=change.fresh)
            case Removed() if self.added is not None:
                self.added.forget(change.name, now)

    def learn(self, joined: Joined, now: float, lease_s: float) -> None:
        """Another master knows a worker."""
        info, registry = joined.info, self.master.registry
        name = info.instance_id
        self.wanted.discard(name)
        known = registry.instances.get(name)
        if known is None or not same_life(known.info, info):
            since = now * 1e3 - joined.age_ms
            check_newer(info, since, registry.before(info))
            if known is not None and known.info.url != info.url and info.url < known.info.url:
                registry.deregister(InstanceName(name))  # the same winner on every master
            registry.register(info, now * 1e3, lease_s)
            registry.instances[name].since = since
        elif self.speaks_to_us(name, now):
            lease_s = 0.0
        if lease_s:
            registry.touch(name, now * 1e3, lease_s)
            self._direct.pop(name, None)
            self.homes[name] = Home(joined.home, now)
        if joined.draining:
            registry.drain(Drain(name), now * 1e3)

    def learn_added(self, body: bytes, now: float, *, fresh: bool) -> None:
        """Another master was told of a worker by hand. One that was removed here meanwhile is told
        to be removed."""
        removed = self.added.learn(body, now, fresh=fresh) if self.added is not None else ""
        if removed:
            self.tell(Removed(removed))

    def added_bodies(self) -> list[Added]:
        """What was added by hand, to be said again."""
        bodies = {} if self.added is None else self.added.bodies()
        return [Added(name, body) for name, body in bodies.items()]

    def recall(self, joined: Joined, now: float, lease_s: float) -> None:
        """A worker as it was last written down: older than what it says itself."""
        if lease_s <= 0:
            raise InvalidRequest("a worker without a lease", code="garbage")
        there = self.master.registry.before(joined.info)
        if not any(self.speaks_to_us(known.info.instance_id, now) for known in there):
            self.learn(joined, now, lease_s)

    def repeat(self, instance_id: str, now: float) -> None:
        """What was written down of a worker is gone: tell of it again."""
        if instance_id in self._direct:
            self.tell(self._joined(self.master.registry.instances[instance_id].info, now))

    def _hear_beat(self, sender: str, beat: Heartbeat, now: float) -> None:
        if self.speaks_to_us(beat.instance_id, now):
            return
        if self.master.heartbeat(beat, now).known:
            self._direct.pop(beat.instance_id, None)
            self.homes[beat.instance_id] = Home(sender, now)
        else:
            self._want(beat.instance_id, beat.generation)

    def _want(self, instance_id: str, generation: str) -> None:
        """What is written down of a worker, if that life of it is not known here."""
        known = self.master.registry.instances.get(instance_id)
        if known is not None and known.info.generation == generation:
            return
        if len(self.wanted) < self.master.config.max_instances:
            self.wanted.add(instance_id)
            self.wake()

    def _hear_left(self, left: Left, now: float) -> None:
        if not (left.lapsed and self.speaks_to_us(left.instance_id, now)):
            self.master.registry.deregister(InstanceName(left.instance_id, left.generation))

    def _hear_opened(self, opened: Opened, now: float) -> None:
        instance = self.master.registry.instances.get(opened.instance_id)
        if instance is not None and instance.info.generation == opened.generation:
            longest = self.master.config.breaker_open * 1e3
            self.master.registry.breakers.open(instance, now * 1e3, min(opened.open_ms, longest))
