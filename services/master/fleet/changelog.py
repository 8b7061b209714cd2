"""Which workers have come, changed and left since when, for proxies and listeners."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from protocol.registry import InstanceInfo, Load, Workers, WorkerView
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance

_MAX_GONE = 4096  # departures remembered for proxies that ask after a pause
_NO_LOAD = Load()
_DIGITS = 20  # no version has more


class FleetListener:
    """Does nothing; a subclass overrides what it wants to be told of. It is called in the middle of
    a change and must not change workers itself."""

    def joined(self, info: InstanceInfo) -> None:
        """A worker has come or has restarted: its events are to be followed."""

    def left(self, info: InstanceInfo) -> None:
        """A worker is forgotten."""

    def opened(self, instance_id: str, now_ms: float) -> None:
        """Failures reported here have opened a worker's circuit breaker."""

    def changed(self) -> None:
        """The changelog has grown."""


@dataclass
class Changelog:
    """Versions count changes; a cursor is the version and which start of the master counted it.
    `retired`: of the departures that are remembered, those on purpose.

    `changed` is called for each. Callers that ask for changes from before the oldest departure
    remembered get all workers.
    """

    changed: Callable[[], None] = lambda: None
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    retired: set[str] = field(default_factory=set)
    _version: int = 0
    _changed_at: dict[str, int] = field(default_factory=dict)
    _gone_at: dict[str, int] = field(default_factory=dict)
    _forgotten: int = 0

    @property
    def cursor(self) -> str:
        return f"{self.epoch}-{self._version}"

    def note(self, instance_id: str) -> None:
        """It has come, or may be used again, or no more."""
        self._gone_at.pop(instance_id, None)
        self.retired.discard(instance_id)
        self._move(self._changed_at, instance_id)

    def drop(self, instance_id: str, retired: bool = False) -> None:
        """It has left."""
        self._changed_at.pop(instance_id, None)
        # Before `_move`, which tells of the change.
        if retired:
            self.retired.add(instance_id)
        self._move(self._gone_at, instance_id)
        if len(self._gone_at) > _MAX_GONE:
            oldest = next(iter(self._gone_at))
            self._forgotten = self._gone_at.pop(oldest)
            self.retired.discard(oldest)

    def _move(self, table: dict[str, int], instance_id: str) -> None:
        """Tables stay in the order of versions, for dictionaries keep that of insertion."""
        self._version += 1
        table.pop(instance_id, None)
        table[instance_id] = self._version
        self.changed()

    def since(self, cursor: str) -> tuple[list[str], list[str]] | None:
        """(ids that came or changed, ids that left) since then; None if that is not known."""
        epoch, _, number = cursor.rpartition("-")
        if epoch != self.epoch or not (number.isascii() and number.isdigit()):
            return None
        # Python reads no numbers of thousands of digits, and raises another error then.
        if len(number) > _DIGITS:
            return None
        version = int(number)
        if not self._forgotten <= version <= self._version:
            return None
        return _after(self._changed_at, version), _after(self._gone_at, version)


def _after(table: dict[str, int], version: int) -> list[str]:
    found = []
    for name, changed_at in reversed(table.items()):
        if changed_at <= version:
            break
        found.append(name)
    return found


def changes_since(
    changelog: Changelog, instances: dict[str, Instance], fleets: dict[str, Fleet], cursor: str,
    now_ms: float,
) -> Workers:  # fmt: skip
    """The answer to a question for what has changed since `cursor`."""
    changes = changelog.since(cursor)
    came, gone = changes or (instances, [])
    views = [
        worker_view(instances[name], fleets[instances[name].info.model], now_ms) for name in came
    ]
    retired = [name for name in gone if name in changelog.retired]
    return Workers(changelog.cursor, changes is None, views, gone, retired)


def worker_view(instance: Instance, fleet: Fleet, now_ms: float) -> WorkerView:
    pool, row = instance.pool, instance.row
    return WorkerView(
        msgspec.structs.replace(instance.info, load=_NO_LOAD),
        instance.draining,
        bool(pool.penalty[row] == 0.0),
        float(pool.requests[row]),
        max(0.0, float(pool.busy_until[row]) - now_ms),
        fleet.blocks.count(instance.slot),
        fleet.media.count(instance.slot),
        pool.rates(row),
        int(pool.total_blocks[row]),
    )
