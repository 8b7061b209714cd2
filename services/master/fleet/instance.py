"""A registered worker, as its fleet keeps it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from protocol.placement import Target
from protocol.registry import InstanceInfo
from services.master.fleet.learned_rates import RateLearner
from services.master.fleet.pool import Pool
from services.master.index.foreign_blocks import ForeignBlocks
from services.master.index.predicted_cache import PredictedCaches
from services.master.index.source_holdings import SourceHoldings


@dataclass(eq=False, slots=True)
class Instance:
    """A registered worker. Times are ms of the caller's monotonic clock."""

    info: InstanceInfo  # as it has registered
    pool: Pool  # where its load stands
    row: int  # and in which row of it
    slot: int  # its number in the indices of caches
    lease_until: float  # when it is forgotten unless it is heard of
    since: float  # when this generation of it was first known, to any master
    held_blocks: SourceHoldings[int]  # what its sources of events say that its pool holds
    held_host: SourceHoldings[int]  # the same of host memory below the pool
    held_disk: SourceHoldings[int]  # and of disk
    held_media: SourceHoldings[str]  # the same of embeddings
    # What it holds by the keys of proxies that have no model, which no events name
    predicted: PredictedCaches
    drained: bool = False  # by a call to a master
    says_draining: bool = False  # by its own word
    resumed: bool = False  # a call has taken it back, and the worker does not know yet
    stalled: bool = False  # its engine makes no progress, by the worker's own word
    failures: int = 0  # of requests there, in a row
    open_until: float = 0.0  # until then its circuit breaker keeps requests away
    role_since: float = 0.0  # since when it serves its role
    # When it was told of that role and has not said yet that it serves it; None if it has
    ordered_at: float | None = None
    disobeyed_at: float = -math.inf  # when it was last found to serve another role than it was told
    # Our names of its blocks for each source of events, where hashes are its engine's own
    foreign: dict[int, ForeignBlocks] = field(default_factory=dict)
    # What it holds by the keys of requests, where it publishes no events
    guessed: PredictedCaches | None = None
    learner: RateLearner | None = None  # how fast it is, by what proxies report
    target: Target = field(init=False)  # as placements name it

    def __post_init__(self) -> None:
        self.target = _target(self.info)
        self.role_since = self.since

    def stand(self, pool: Pool, row: int, info: InstanceInfo) -> None:
        """Its load stands elsewhere from here on, as it serves another role."""
        self.pool, self.row, self.info = pool, row, info
        self.target = _target(info)

    @property
    def draining(self) -> bool:
        """It gets no new requests; those under way finish."""
        return self.drained or self.says_draining

    @property
    def measures_itself(self) -> bool:
        """It has said how long what it computes takes there."""
        return self.pool.told(self.row) is not None

    def update_penalty(self, now_ms: float) -> None:
        """No new work while it drains, its engine stalls or its breaker is open."""
        usable = not (self.draining or self.stalled) and self.open_until <= now_ms
        self.pool.allow(self.row, usable, stays=not self.draining)

    def caches(self, predicted: bool) -> PredictedCaches | None:
        """Where it is noted what a request with such keys leaves here; None if events tell."""
        return self.predicted if predicted else self.guessed

    def held_below(self, medium: str | None) -> SourceHoldings[int] | None:
        """Blocks of a tier below its pool, by what cache events call that; None if it is not known,
        or names blocks as their engine does, which tells nothing of what is in them there."""
        if self.info.foreign:
            return None
        return {"CPU": self.held_host, "DISK": self.held_disk}.get(medium or "")

    def forget_blocks(self, source: int) -> None:
        """What that source of events has said of blocks does not count any more."""
        for held in (self.held_blocks, self.held_host, self.held_disk):
            held.drop(source)
        self.foreign.pop(source, None)


def _target(info: InstanceInfo) -> Target:
    return Target(
        info.instance_id, info.url, info.role, info.dialect, info.kv_endpoint, info.ec_endpoint
    )
