"""What other masters tell, applied to this one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.errors import InvalidRequest, TriptychError
from protocol.registry import Drain, Heartbeat, InstanceName
from services.master.fleet.added_workers import AddedWorkers
from services.master.fleet.validation import check_newer, same_process
from services.master.master import Master
from services.master.replication.masters import Homes, OtherMasters
from services.master.replication.messages import (
    Added,
    Beat,
    Change,
    Ended,
    Joined,
    Kept,
    Left,
    Moved,
    Opened,
    Placed,
    Removed,
    Resumed,
)


@dataclass
class Receiver:
    """Applies what `others` tell of workers and requests. Times are seconds of the caller's
    monotonic clock."""

    master: Master  # the one that it is applied to
    homes: Homes  # whether a worker's own word, heard here, counts for more
    others: OtherMasters  # what they have placed
    added: AddedWorkers | None  # the workers added by hand, if they are shared
    counts: Counter[str]  # what was refused, by error
    wake: Callable[[], None]  # called when a worker is wanted
    tell: Callable[[Change], None]  # called with what the others do not know in turn
    # Ids of workers that are heard of but not known: to be read from where all masters write their
    # workers down
    wanted: set[str] = field(default_factory=set)

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
            # For masters that do not know the worker. The others probe it themselves.
            case Kept():
                self._want(change.worker.info.instance_id, change.worker.info.generation)
            case Left():
                self._hear_left(change, now)
            case Resumed():
                resumed = Drain(change.instance_id, change.generation, draining=False)
                self.master.drain(resumed, now)
            case Moved():
                self._hear_moved(change, now)
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
        if known is None or not same_process(known.info, info):
            since = now * 1e3 - joined.age_ms
            check_newer(info, since, registry.before(info))
            if known is not None and known.info.url != info.url and info.url < known.info.url:
                # The same winner on every master.
                registry.deregister(InstanceName(name, failed=True))
            registry.register(info, now * 1e3, lease_s)
            # As old as its process, not as what this master knows: `check_newer` compares that.
            registry.instances[name].since = since
        elif self.homes.speaks_to_us(name, now):
            lease_s = 0.0  # its own word is newer than what another master says of it
        else:
            registry.rename(info)
        if lease_s:
            registry.touch(name, now * 1e3, lease_s)
            self.homes.speaks_elsewhere(name, joined.home, now)
            # Not by `drain`, which only a call undoes: the worker ends its own drain by itself.
            if joined.says_draining:
                registry.availability.drains_itself(registry.instances[name], now * 1e3)
        if joined.draining:
            registry.drain(Drain(name), now * 1e3)

    def learn_added(self, body: bytes, now: float, *, fresh: bool) -> None:
        """Another master was told of a worker by hand. One that was removed here meanwhile is told
        to be removed."""
        removed = self.added.learn(body, now, fresh=fresh) if self.added is not None else ""
        if removed:
            self.tell(Removed(removed))

    def recall(self, joined: Joined, now: float, lease_s: float) -> None:
        """A worker as it was last written down: older than what it says itself."""
        if lease_s <= 0:
            raise InvalidRequest("the worker's entry in Redis has no lease", code="garbage")
        there = self.master.registry.before(joined.info)
        if not any(self.homes.speaks_to_us(known.info.instance_id, now) for known in there):
            self.learn(joined, now, lease_s)

    def _hear_beat(self, sender: str, beat: Heartbeat, now: float) -> None:
        if self.homes.speaks_to_us(beat.instance_id, now):
            return
        if self.master.heartbeat(beat, now).known:
            self.homes.speaks_elsewhere(beat.instance_id, sender, now)
        else:
            self._want(beat.instance_id, beat.generation)

    def _want(self, instance_id: str, generation: str) -> None:
        """What is written down of a worker, if this generation of it is not known here."""
        known = self.master.registry.instances.get(instance_id)
        if known is not None and known.info.generation == generation:
            return
        if len(self.wanted) < self.master.config.max_instances:
            self.wanted.add(instance_id)
            self.wake()

    def _hear_left(self, left: Left, now: float) -> None:
        # A lapse is one master's silence; who deregistered has left them all.
        if not (left.lapsed and self.homes.speaks_to_us(left.instance_id, now)):
            failed = left.lapsed or left.failed
            name = InstanceName(left.instance_id, left.generation, failed)
            self.master.registry.deregister(name)

    def _hear_moved(self, moved: Moved, now: float) -> None:
        instance = self.master.registry.named(moved.instance_id, moved.generation)
        if instance is not None and moved.role in instance.info.roles:
            roles = self.master.registry.roles
            roles.move(instance, moved.role, now * 1e3, "another master's word", "master")

    def _hear_opened(self, opened: Opened, now: float) -> None:
        instance = self.master.registry.instances.get(opened.instance_id)
        if instance is not None and instance.info.generation == opened.generation:
            # No longer than this master's own flag says, even if another one's is longer.
            longest = self.master.config.breaker_open * 1e3
            self.master.registry.breakers.open(instance, now * 1e3, min(opened.open_ms, longest))
