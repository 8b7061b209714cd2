"""Which worker should serve another role: the role with the most work to a worker takes one from
the role with the least, if that helps by enough, and not too often.

A role's load is as `wanted_workers` reckons: how many workers its work takes, as a mean over
some seconds, over how many it has. After a move the role that has given is less loaded, by a
margin, than the one that has taken was before, so that under a steady load no worker moves back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from protocol.registry import StageRole
from services.master.config import MasterConfig
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.wanted_workers import backlog, computing, decoding

STAGES: tuple[StageRole, ...] = ("prefill", "decode", "encode")
_LOOK_MS = 500.0
_SETTLE_MS = 2e3  # until a fleet that starts, or the other masters, are known
_MEDIA_MS = 300e3  # since the last picture: so long an encoder waits for the next one
_DISOBEYED_MS = 300e3  # until a worker that has kept its role is asked again
_MOST_LOAD = 1.0  # of a role that needs no further worker


@dataclass(frozen=True)
class Move:
    """One worker that is to serve another role, and why."""

    instance: Instance
    role: StageRole
    cause: str


@dataclass
class _Loads:
    """Of one model's roles: workers that their work takes. Times are ms."""

    since: float
    looked_at: float
    demand: dict[StageRole, float]
    moved_at: float = -math.inf
    moved_to: dict[StageRole, float] = field(default_factory=dict)


@dataclass
class RoleMover:
    """Looks at the fleets that have workers of several roles. Times are ms of the caller's
    clock."""

    config: MasterConfig
    _loads: dict[str, _Loads] = field(default_factory=dict)
    _looked_at: float = -math.inf

    def look(
        self, fleets: Mapping[str, Fleet], waiting: Mapping[str, int], now_ms: float, *, leads: bool
    ) -> list[Move]:
        """Moves that are to be made now, one of each model at most, none unless this master
        `leads`; `waiting` are requests by model. Call often."""
        elastic = [fleet for fleet in fleets.values() if fleet.elastic]
        if now_ms - self._looked_at < _LOOK_MS:
            return []
        self._looked_at = now_ms
        for fleet in elastic:
            # By masters that do not lead too: the next one to lead has a mean from the start.
            self._observe(fleet, waiting.get(fleet.model, 0), now_ms)
        for gone in self._loads.keys() - {fleet.model for fleet in elastic}:
            del self._loads[gone]
        moves = (self._decide(fleet, now_ms) for fleet in elastic if leads)
        return [move for move in moves if move is not None]

    def _observe(self, fleet: Fleet, waiting: int, now_ms: float) -> None:
        found = {role: self._demand(fleet, role, waiting, now_ms) for role in STAGES}
        loads = self._loads.get(fleet.model)
        if loads is None:
            self._loads[fleet.model] = _Loads(now_ms, now_ms, found)
            return
        share = 1.0 - math.exp((loads.looked_at - now_ms) / (self.config.elastic_window * 1e3))
        for role, demand in found.items():
            loads.demand[role] += (demand - loads.demand[role]) * share
        loads.looked_at = now_ms

    def _demand(self, fleet: Fleet, role: StageRole, waiting: int, now_ms: float) -> float:
        pool = fleet.pools[role]
        if role == "decode":
            return decoding(self.config, pool, waiting)
        return computing(self.config, *backlog(self.config, pool, now_ms))

    def _decide(self, fleet: Fleet, now_ms: float) -> Move | None:
        loads = self._loads[fleet.model]
        roles = _Split(fleet, loads.demand, now_ms)
        taker = max(STAGES, key=roles.load)
        urgent = not roles.count(taker)
        if roles.load(taker) <= _MOST_LOAD or not self._may(loads, taker, now_ms, urgent=urgent):
            return None
        dwell_ms = 0.0 if urgent else self.config.elastic_dwell * 1e3
        givers = {role: roles.load(role, -1) for role in STAGES if role != taker}
        most = math.inf
        if not urgent:
            # Those that are left must be able to do what there is: a queue elsewhere may be long,
            # but only because it came before this role's work.
            all_they_can = 1.0 / self.config.wanted_utilisation
            most = min(all_they_can, roles.load(taker) * (1.0 - self.config.elastic_margin))
        for giver in sorted(givers, key=lambda role: givers[role]):
            # Least loaded first: no later one is less loaded.
            if givers[giver] >= most:
                return None
            free = [
                one for one in roles.movable(giver, taker) if now_ms - one.role_since >= dwell_ms
            ]
            if free:
                loads.moved_at = loads.moved_to[taker] = now_ms
                chosen = min(free, key=lambda one: _loss(fleet, one, taker))
                return Move(chosen, taker, f"{roles.told(taker)}; {roles.told(giver)}")
        return None

    def _may(self, loads: _Loads, taker: StageRole, now_ms: float, *, urgent: bool) -> bool:
        """Not before the mean says something, and not right after another move; an urgent one not
        right after one to the same role, whose workers may fail one after the other."""
        last = loads.moved_to.get(taker, -math.inf) if urgent else loads.moved_at
        if now_ms - last < self.config.elastic_gap * 1e3:
            return False
        known_ms = _SETTLE_MS if urgent else self.config.elastic_window * 1e3
        return now_ms - loads.since >= known_ms


@dataclass(frozen=True)
class _Split:
    """How a model's workers are divided among the roles."""

    fleet: Fleet
    demand: Mapping[StageRole, float]
    now_ms: float

    def count(self, role: StageRole) -> int:
        """Workers that may be used."""
        return int(np.count_nonzero(self.fleet.pools[role].penalty == 0.0))

    def needed(self, role: StageRole) -> bool:
        """Whether at least one worker must serve it. Workers that prefill and decode serve text
        without any other."""
        if role == "encode":
            return self.now_ms - self.fleet.media_at < _MEDIA_MS
        return not np.count_nonzero(self.fleet.pools["combined"].penalty == 0.0)

    def load(self, role: StageRole, more: int = 0) -> float:
        """Workers that it takes over those it has, with so many `more`; infinite for a role that
        is needed and has none."""
        count = self.count(role) + more
        if count <= 0:
            return math.inf if self.needed(role) else 0.0
        return self.demand[role] / count

    def movable(self, giver: StageRole, taker: StageRole) -> Iterator[Instance]:
        """Workers that may be used and may serve both, and that do what this master says."""
        for instance in self.fleet.by_slot.values():
            usable = not instance.pool.penalty[instance.row]
            usable = usable and self.now_ms - instance.disobeyed_at >= _DISOBEYED_MS
            if usable and instance.info.role == giver and taker in instance.info.roles:
                yield instance

    def told(self, role: StageRole) -> str:
        """In words."""
        wanted = max(int(self.needed(role)), math.ceil(self.demand[role] - 1e-9))
        return f"{role} wanted {wanted}, had {self.count(role)}"


def _loss(fleet: Fleet, instance: Instance, role: StageRole) -> tuple[float, int, str]:
    """By what a worker has under way, then by how little of what `role` needs it caches."""
    index = fleet.media if role == "encode" else fleet.blocks
    requests = float(instance.pool.requests[instance.row])
    return requests, -index.count(instance.slot), instance.info.instance_id
