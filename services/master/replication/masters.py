"""Other masters: which workers talk to them, and what they have placed, counted here until it ends
or they fall silent."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.errors import InvalidRequest
from protocol.placement import Finished
from services.master.master import Master
from services.master.placement.ledger import Ledger
from services.master.replication.messages import Ended, Placed
from services.master.replication.placement_sync import restore

_MOST = 64  # other masters: any writer to the channel can name new ones
_SILENT_S = 3.0
_HELLOS = 3  # in the time after which a master is taken to be gone: two may be lost


@dataclass(slots=True)
class Home:
    """Which master speaks for a worker, and when it last did (s)."""

    master: str
    heard: float


@dataclass
class Homes:
    """Of a known worker, by its id: in `elsewhere` the other master that it talks to, or in `here`
    when it last talked to this one (s). Heard within `fresh_s` here, its own word counts for more
    than another master's: what others say may be older."""

    fresh_s: float
    elsewhere: dict[str, Home] = field(default_factory=dict)
    here: dict[str, float] = field(default_factory=dict)

    def speaks_here(self, instance_id: str, now: float) -> None:
        self.here[instance_id] = now
        self.elsewhere.pop(instance_id, None)

    def speaks_elsewhere(self, instance_id: str, master: str, now: float) -> None:
        self.here.pop(instance_id, None)
        self.elsewhere[instance_id] = Home(master, now)

    def forget(self, instance_id: str) -> bool:
        """The worker has left; whether it spoke to this master."""
        self.elsewhere.pop(instance_id, None)
        return self.here.pop(instance_id, None) is not None

    def speaks_to_us(self, instance_id: str, now: float) -> bool:
        """Whether a worker was lately heard of without other masters."""
        heard = self.here.get(instance_id)
        return heard is not None and now - heard < self.fresh_s


@dataclass
class OtherMaster:
    """When a master was last heard of (s), and the requests it has placed."""

    heard: float
    ledger: Ledger = field(default_factory=Ledger)


@dataclass
class OtherMasters:
    """By name. Times are seconds of the caller's monotonic clock."""

    master: Master
    _others: dict[str, OtherMaster] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """A master that says nothing for so long is gone: well before its workers' leases lapse."""
        return min(_SILENT_S, self.master.config.lease / 3)

    @property
    def hello_s(self) -> float:
        """Every master says something so often."""
        return self.silent_s / _HELLOS

    def __len__(self) -> int:
        return len(self._others)

    def __contains__(self, name: str) -> bool:
        return name in self._others

    def all_after(self, name: str) -> bool:
        """Whether none of them comes before `name`."""
        return all(other > name for other in self._others)

    @property
    def in_flight(self) -> int:
        """Requests that others have placed."""
        return sum(len(other.ledger) for other in self._others.values())

    def greet(self, sender: str, now: float) -> None:
        """A master is there."""
        if sender in self._others:
            self._others[sender].heard = now
        elif len(self._others) < _MOST:
            self._others[sender] = OtherMaster(now)

    def prolong(self, by_s: float) -> None:
        """No master could be heard for so long."""
        for other in self._others.values():
            other.heard += by_s

    def placed(self, sender: str, placed: Placed, now: float) -> None:
        """`InvalidRequest` for what cannot be; nothing is counted then."""
        other, registry = self._others.get(sender), self.master.registry
        fleet = registry.fleets.get(placed.model)
        if other is None or fleet is None:
            return
        if len(other.ledger) >= self.master.config.max_in_flight:
            raise InvalidRequest(
                "another master has more placements than --max-in-flight allows",
                code="too_many_placed",
            )
        held = restore(placed, fleet, registry.instances, now * 1e3)
        other.ledger.hold(placed.request_id, held, now * 1e3)

    def ended(self, sender: str, ended: Ended, now: float) -> None:
        other, now_ms = self._others.get(sender), now * 1e3
        if other is None:
            return
        report = Finished(ended.request_id, ended.stage, ended.mm_hashes, aborted=not ended.ok)
        if not ended.stray:
            other.ledger.finish(report, now_ms)
        # Every master hears it: one has placed the request, the others count it as that one's.
        elif self.master.ledger.finish(report, now_ms) is None:
            self.finish(report, now_ms)

    def finish(self, report: Finished, now_ms: float) -> list[str]:
        """At the master that has placed it: the workers that have done their part in it."""
        for other in self._others.values():
            workers = other.ledger.finish(report, now_ms)
            if workers is not None:
                return workers
        return []

    def expire(self, now: float) -> None:
        """Placements lapse in time, and all of a master that is not heard any more."""
        for name, other in list(self._others.items()):
            # The word of an end may be lost: the channel keeps no messages.
            other.ledger.expire(now * 1e3)
            if now - other.heard > self.silent_s:
                other.ledger.clear(now * 1e3)
                del self._others[name]
