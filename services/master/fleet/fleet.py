"""The workers of one model, their load and their caches. Models share nothing."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from protocol.registry import InstanceInfo, InstanceRole, StageRole
from services.master.config import MasterConfig
from services.master.fleet.cache_events import CacheEvents
from services.master.fleet.cache_index import CacheIndex, PendingEncode
from services.master.fleet.instance import Instance
from services.master.fleet.learned_rates import RateLearner, learner
from services.master.fleet.pool import Pool
from services.master.fleet.priced_columns import STEP_SHARE
from services.master.fleet.shared_rates import share
from services.master.index.expected_prefixes import ExpectedPrefixes
from services.master.index.predicted_cache import PredictedCache, PredictedCaches
from services.master.index.prefix_index import HolderIndex, block_index
from services.master.index.source_holdings import SourceHoldings

KINDS = ("encode", "prefill", "decode", "combined", "store")
_KIND_OF = MappingProxyType({"prefill_decode": "combined", "pdfusion": "combined"})
_EXPIRE_MS = 1e3


@dataclass
class Fleet:
    """The workers of one model."""

    model: str  # its name
    config: MasterConfig  # the master's
    pools: dict[str, Pool] = field(init=False)  # their load, by kind
    # Their caches by content keys, as workers' events name them
    exact: CacheIndex = field(init=False)
    # The same by the keys of proxies that have no model, as far as requests were placed from here.
    # The two never meet.
    predicted: CacheIndex = field(init=False)
    # The workers, by their number in the indices
    by_slot: dict[int, Instance] = field(default_factory=dict)
    events: CacheEvents = field(init=False)  # what workers' caches tell of themselves
    elastic: int = 0  # how many of the workers may have several roles
    media_at: float = -math.inf  # when a request with media was last placed here (ms)
    _free_slots: list[int] = field(default_factory=list)
    _expired_at: float = 0.0

    def __post_init__(self) -> None:
        self.pools = {kind: Pool(kind, self.config) for kind in KINDS}
        self.exact, self.predicted = self._index(), self._index()
        self.events = CacheEvents(self.model, self.pending, self.config.predict_blocks)

    def _index(self) -> CacheIndex:
        most = self.config.max_index_entries
        blocks, host, disk = (block_index(most) for _ in range(3))
        return CacheIndex(blocks, HolderIndex(most), host, disk)

    def index(self, predicted: bool) -> CacheIndex:
        return self.predicted if predicted else self.exact

    @property
    def blocks(self) -> HolderIndex[int]:
        return self.exact.blocks

    @property
    def media(self) -> HolderIndex[str]:
        return self.exact.media

    @property
    def pending(self) -> dict[str, PendingEncode]:
        return self.exact.pending

    @property
    def expected(self) -> ExpectedPrefixes:
        return self.exact.expected

    @property
    def slots(self) -> int:
        """One more than the largest slot in use."""
        return len(self.by_slot) + len(self._free_slots)

    def running_at_once(self) -> float:
        """Requests that all who decode run at once; inf if one does not say."""
        decoding = (self.pools["decode"], self.pools["combined"])
        return sum(float(p.max_running[p.penalty == 0.0].sum()) for p in decoding)

    def add(self, info: InstanceInfo, now_ms: float, lease_ms: float) -> Instance:
        # The smallest first: large sets of slots are masks as long as their largest slot.
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self.by_slot)
        pool = self._pool_of(info.role)
        row = pool.add(info, slot, now_ms)
        held = (
            SourceHoldings(self.blocks, slot),
            SourceHoldings(self.exact.host, slot),
            SourceHoldings(self.exact.disk, slot),
            SourceHoldings(self.media, slot),
        )
        predicted = self._caches(self.predicted, slot, 0)
        instance = Instance(info, pool, row, slot, now_ms + lease_ms, now_ms, *held, predicted)
        if not (info.events and self.config.follow_events):
            instance.guessed = self._caches(self.exact, slot, info.load.total_blocks)
        instance.learner = self._learner(pool.kind)
        self.by_slot[slot] = instance
        self.elastic += bool(info.roles)
        return instance

    def _pool_of(self, role: InstanceRole) -> Pool:
        return self.pools[_KIND_OF.get(role, role)]

    def move(self, instance: Instance, role: StageRole, now_ms: float) -> None:
        """A worker serves another role from here on. Its caches, its load and what it has been
        charged for go with it."""
        info = msgspec.structs.replace(instance.info, role=role)
        pool, learner = self._pool_of(role), self._learner(role)
        if instance.learner is not None:
            learner.decoding = instance.learner.decoding  # those that decode there go on
        instance.stand(pool, instance.pool.move(instance.row, pool, info, now_ms), info)
        instance.learner, instance.role_since = learner, now_ms
        instance.update_penalty(now_ms)

    def _learner(self, kind: str) -> RateLearner:
        config = self.config
        encodes = kind == "encode"
        token_ms = config.encode_ms_per_token if encodes else config.prefill_ms_per_token
        step_ms = config.decode_ms_per_step
        return learner(token_ms, step_ms, step_ms * STEP_SHARE)

    def remove(self, instance: Instance) -> None:
        """Its caches and its load are forgotten at once."""
        instance.pool.remove(instance.row)
        self.elastic -= bool(instance.info.roles)
        self.exact.drop(instance.slot)
        self.predicted.drop(instance.slot)
        del self.by_slot[instance.slot]
        # After the indices have dropped it: a slot's next worker must begin with nothing.
        heapq.heappush(self._free_slots, instance.slot)

    def _caches(self, index: CacheIndex, slot: int, blocks: int) -> PredictedCaches:
        config = self.config
        ttl, most = config.predict_ttl * 1e3, config.predict_blocks
        kept = config.predict_prune_ratio
        return PredictedCaches(
            PredictedCache(index.blocks, slot, ttl, blocks or most, kept),
            PredictedCache(index.media, slot, ttl, most, kept),
        )

    def expire(self, now_ms: float) -> None:
        """Drop expired predictions and pending encodes, and think of workers that are not measured
        as of those that are, once a second at most."""
        if 0 <= now_ms - self._expired_at < _EXPIRE_MS:
            return
        self._expired_at = now_ms
        for instance in self.by_slot.values():
            instance.predicted.expire(now_ms)
            if instance.guessed is not None:
                instance.guessed.expire(now_ms)
        self.exact.expire(now_ms)
        self.predicted.expire(now_ms)
        self._share_rates()

    def first_measured(self) -> None:
        """A worker has measured itself for the first time: at the next look, others are thought to
        be like it, and do not cost what flags say where it costs what is measured."""
        self._expired_at = -math.inf

    def _share_rates(self) -> None:
        """Of the workers of each kind, with those that have not measured themselves what they
        compute."""
        found: dict[str, list[tuple[Instance, RateLearner]]] = {}
        told: dict[str, list[tuple[float, float]]] = {}
        for one in self.by_slot.values():
            measured = one.pool.told(one.row)
            if measured is not None:
                told.setdefault(one.pool.kind, []).append(measured)
            elif one.learner is not None:
                found.setdefault(one.pool.kind, []).append((one, one.learner))
        for kind, workers in found.items():
            idle = [not one.pool.cells.requests[one.row] for one, _ in workers]
            changed = share([learns for _, learns in workers], idle, told.get(kind, ()))
            for (one, learns), new in zip(workers, changed, strict=True):
                if new:
                    one.pool.learn(one.row, learns.rates())
