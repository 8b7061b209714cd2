"""Where the embeddings of a request's pictures come from."""

from __future__ import annotations

import math

import numpy as np

from protocol.placement import ItemPlacement, MediaNeed, ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.cache_index import CacheIndex, PendingEncode
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Charge, Pool
from services.master.index.holder_sets import slots_of
from services.master.placement.compatibility import ec_mixed, makers
from services.master.placement.costs import ENCODE, busy, encode_costs, least, queue_ms
from services.master.placement.media_plan import ItemSources, MediaPlan
from services.master.placement.policies.base import Policy
from services.master.placement.refusals import avoided, others_stay, refusal
from services.master.placement.reservation import GuessedItem

_SERVING = ("encode", "store")
_MAX_HOLDERS = 16  # priced for one picture, which a large fleet may hold a hundred times
_STALE_MS = 10_000.0  # past its due time an encode is not joined: its worker may be gone


class MediaPlacer:
    """Looks pictures up, and chooses encoders for those that have to be encoded.

    An item of a `predicted` request comes from an encoder also where a prefill worker holds it:
    engines of other makers learn from an encoder's answer what stands for the item. A prefill
    worker that can encode does so where that is sooner by more than an encode: what an encoder has
    made serves later requests, on any worker.
    """

    def __init__(self, config: MasterConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy

    def look_up(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> list[ItemSources]:
        """Every item with its holders and the soonest it can be ready."""
        pool = fleet.pools["encode"]
        wait, base, token_ms = 0.0, 0.0, self._config.encode_ms_per_token
        if pool.count:
            waits = np.maximum(pool.busy_until - now_ms, 0.0) + pool.penalty
            row = int((waits + pool.base_ms).argmin())
            wait, base = float(waits[row]), float(pool.base_ms[row])
            token_ms = float(pool.token_ms[row])
        index = fleet.index(request.predicted)
        works = [base + need.tokens * token_ms for need in request.items]
        return [
            self._look_up(fleet, index, need, wait, work, now_ms)
            for need, work in zip(request.items, works, strict=True)
        ]

    def _look_up(
        self, fleet: Fleet, index: CacheIndex, need: MediaNeed, wait: float, work: float,
        now_ms: float,
    ) -> ItemSources:  # fmt: skip
        """`wait`: until the encoder that is soonest begins; `work`: what it then takes."""
        holders = index.media.holders(need.mm_hash)
        pending = index.pending.get(need.mm_hash)
        # What has expired is swept once a second at most.
        if pending is not None and pending.expires_at <= now_ms:
            pending = None
        coming = pending is not None
        if pending is not None and not _serves(fleet.by_slot[pending.slot], now_ms):
            pending = None
        if any(_serves(fleet.by_slot[slot], now_ms) for slot in slots_of(holders)):
            ready = alone = 0.0
        elif pending is not None:
            ready = alone = max(0.0, pending.ready_at - now_ms)
        else:
            ready, alone = wait + work, work
        return ItemSources(need, holders, pending, coming, ready, alone)

    def ready(
        self, fleet: Fleet, items: list[ItemSources], pool: Pool, hits: Floats, now_ms: float
    ) -> tuple[Floats, int]:
        """(ms until all embeddings are there, tokens from the first missing one on), for each row.

        An item costs nothing where the KV of its span, or the item itself, is.
        """
        ready, first = np.zeros(len(pool)), math.inf
        helping = pool.kind == "prefill" and self._policy.compares and bool(pool.encodes.any())
        own = queue_ms(pool, now_ms)
        for item in items:
            if item.ready_ms == 0.0:
                continue
            first = min(first, item.need.offset)
            if helping and item.pending is None:
                done = own + item.alone_ms
                helps = (pool.encodes > 0.0) & (done + item.alone_ms < item.ready_ms)
                wait = np.where(helps, done, item.ready_ms)
                own = np.where(helps, done, own)
            elif pool.kind == "combined":
                wait = np.where(pool.encodes > 0.0, item.alone_ms, item.ready_ms)
            else:
                wait = np.full(len(pool), item.ready_ms)
            wait[hits >= item.end] = 0.0
            for slot in slots_of(item.holders):
                if fleet.by_slot[slot].pool is pool:
                    wait[fleet.by_slot[slot].row] = 0.0
            ready = np.maximum(ready, wait)
        return ready, -1 if first == math.inf else int(first)

    def place(self, plan: MediaPlan, items: list[ItemSources]) -> list[ItemPlacement]:
        """A source for each item; encodes are charged."""
        return [self._place(plan, item) for item in items]

    def _place(self, plan: MediaPlan, item: ItemSources) -> ItemPlacement:
        name, at = item.need.mm_hash, plan.at
        here, ours = item.holders >> at.slot & 1, not plan.request.predicted
        if ours and self._policy.sees_media:
            if plan.hit_tokens >= item.end:
                return ItemPlacement(name, "prefix")
            # A guess counts a picture as held from its placement on, when it has yet to be encoded.
            if here and not (item.coming and at.guessed is not None):
                return ItemPlacement(name, "cached", at.target)
        elif ours and self._policy.keeps_media and here and at.guessed is None:
            return ItemPlacement(name, "cached", at.target)
        # The same picture twice in a prompt is encoded once.
        if name in plan.held.encodes:
            charge = plan.held.encodes[name]
            target = plan.fleet.by_slot[int(charge.pool.slots[charge.row])].target
            return ItemPlacement(name, "pending", target)
        return self._fetch_or_encode(plan, item)

    def _fetch_or_encode(self, plan: MediaPlan, item: ItemSources) -> ItemPlacement:
        """The cheapest of: fetch from a holder, join an encode under way, encode once more."""
        name, pool = item.need.mm_hash, plan.fleet.pools["encode"]
        fetch_ms, source = math.inf, None
        if self._policy.sees_media:
            fetch_ms, source = self._source(plan, item)
        if source is None and (not pool.count or plan.at.info.role == "pdfusion"):
            return ItemPlacement(name, "local")
        row, encode_ms = -1, math.inf
        helps = source is None and self._policy.compares and plan.can_encode
        if pool.count and (source is None or fetch_ms > self._config.tie_ms):
            row, encode_ms = self._encoder(plan, item, must=source is None and not helps)
        if helps and plan.encoded_there_ms(item) + item.alone_ms < encode_ms:
            plan.local_ms += item.alone_ms
            # `local_ms` has the item by now, so it would count twice.
            plan.comes_after(plan.encoded_there_ms(item) - item.alone_ms)
            return ItemPlacement(name, "local")
        if source is not None and fetch_ms <= encode_ms:
            plan.comes_after(fetch_ms)
            if item.holders >> source.slot & 1:
                plan.fetch(source, item)
                _note_guess(plan, source, item)
                return ItemPlacement(name, "cached", source.target)
            return ItemPlacement(name, "pending", source.target)
        return self._encode(plan, item, row, again=source is not None)

    def _encode(
        self, plan: MediaPlan, item: ItemSources, row: int, *, again: bool
    ) -> ItemPlacement:
        """Count the encode at once, and let later requests join it."""
        fleet, now_ms = plan.fleet, plan.now_ms
        name, pool = item.need.mm_hash, fleet.pools["encode"]
        instance = fleet.by_slot[int(pool.slots[row])]
        tokens, work = item.need.tokens, 0.0
        if item.holders >> instance.slot & 1 and instance.guessed is None:
            tokens = 0  # it answers from its cache, without a queue
        else:
            work = float(pool.base_ms[row] + tokens * pool.token_ms[row])
        charge = Charge(pool, row, now_ms + self._config.settle * 1e3, work, tokens)
        pool.charge(charge, now_ms)
        if work:
            plan.comes_after(float(pool.busy_until[row]) - now_ms)
        plan.held.encodes[name] = charge
        if self._policy.sees_media and not again:
            done = float(pool.busy_until[row])
            pending = PendingEncode(instance.slot, done, done + _STALE_MS, charge)
            fleet.index(plan.request.predicted).pending[name] = pending
        return ItemPlacement(name, "encode", instance.target)

    def _encoder(self, plan: MediaPlan, item: ItemSources, *, must: bool) -> tuple[int, float]:
        """(row, its cost in ms as `CostPolicy` reckons). Without any: an error if `must`, else
        an infinite cost."""
        pool, request, need = plan.fleet.pools["encode"], plan.request, item.need
        held = plan.held_by(pool, item) if self._policy.seeks_holders else pool.none
        costs = encode_costs(pool, need, held, pool.penalty, plan.now_ms, request.session)
        costs.penalty = busy(pool, ENCODE, costs.queue_ms, self._config)
        if ec_mixed(pool, plan.at.pool):
            kind = plan.at.info.ec_compatibility
            costs.penalty = costs.penalty + makers(pool, kind)
        barred = avoided(pool, request.avoid) if request.avoid else None
        if barred is not None and others_stay(pool, barred):
            costs.penalty = costs.penalty + barred
        if least(costs.penalty) > 0.0:
            if must:
                raise refusal(pool, "encode", costs.queue_ms, barred)
            return -1, math.inf
        row = self._policy.pick(costs)
        work = float(costs.work_ms[row]) * (1.0 + self._config.work_weight)
        return row, float(costs.queue_ms[row]) + work

    def _source(self, plan: MediaPlan, item: ItemSources) -> tuple[float, Instance | None]:
        """The cheapest worker to fetch the item from, holding it or about to."""
        best: tuple[float, Instance | None] = math.inf, None
        fleet, avoid, now_ms = plan.fleet, plan.request.avoid, plan.now_ms
        for slot in slots_of(item.holders)[:_MAX_HOLDERS]:
            instance = fleet.by_slot[slot]
            serves = _serves(instance, now_ms) and plan.reads(instance)
            if serves and instance.info.instance_id not in avoid:
                cost = plan.fetch_ms(instance, item)
                if cost < best[0]:
                    best = cost, instance
        pending = item.pending
        if pending is not None and plan.reads(fleet.by_slot[pending.slot]):
            instance = fleet.by_slot[pending.slot]
            cost = max(0.0, pending.ready_at - now_ms) + plan.fetch_ms(instance, item)
            if cost < best[0] and instance.info.instance_id not in avoid:
                best = cost, instance
        return best


def _note_guess(plan: MediaPlan, source: Instance, item: ItemSources) -> None:
    """No event says that the item is there; how long the answer takes will tell."""
    pool, row = source.pool, source.row
    if pool.kind != "encode" or source.caches(plan.request.predicted) is None:
        return
    idle = pool.busy_until[row] <= plan.now_ms
    encode_ms = float(pool.base_ms[row] + item.need.tokens * pool.token_ms[row])
    plan.held.guessed[item.need.mm_hash] = GuessedItem(source, encode_ms if idle else None)


def _serves(instance: Instance, now_ms: float) -> bool:
    """Whether others can fetch embeddings there; a drained worker still hands out what it has, and
    one that may serve several roles what it has encoded before it got its role."""
    serves = instance.pool.kind in _SERVING or "encode" in instance.info.roles
    return serves and instance.open_until <= now_ms
