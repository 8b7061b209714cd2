"""Where the embeddings of a request's pictures come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from protocol.registry import ItemPlacement, MediaNeed, ScheduleRequest
from services.master.config import MasterConfig
from services.master.fleet.cache_index import CacheIndex, PendingEncode
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Charge, Floats, Pool
from services.master.index.prefix_index import slots_of
from services.master.placement.costs import ENCODE, busy, encode_view, least
from services.master.placement.held import Held
from services.master.placement.policies.base import Policy
from services.master.placement.refusals import avoided, others_stay, refusal

_SERVING = ("encode", "store")
_MAX_HOLDERS = 16
_EMBEDDING_BYTES = 8192  # of one token, where a request does not say
_STALE_MS = 10_000.0


@dataclass(slots=True)
class ItemView:
    """One picture and who has it. `holders`: slots. `pending`: an encode that may be joined;
    `coming`: whether any is under way. `ready_ms`: until it is there at the best, `alone_ms` the
    same for a worker that encodes what nobody has by itself."""

    need: MediaNeed
    holders: int
    pending: PendingEncode | None
    coming: bool
    ready_ms: float
    alone_ms: float

    @property
    def end(self) -> int:
        return self.need.offset + self.need.tokens

    def bytes(self) -> int:
        return self.need.size_bytes or self.need.tokens * _EMBEDDING_BYTES


@dataclass(slots=True)
class Errand:
    """The pictures of a request that prefills on `at`, where `hit_tokens` of its prompt are held.
    Encodes are charged at once to `held`; `sends`, until when each slot will have sent what it was
    asked for, count only once all is placed."""

    fleet: Fleet
    request: ScheduleRequest
    at: Instance
    hit_tokens: int
    held: Held
    now_ms: float
    sends: dict[int, float] = field(default_factory=dict)

    def sending_until(self, source: Instance) -> float:
        until = self.sends.get(source.slot)
        return float(source.pool.send_until[source.row]) if until is None else until

    def fetch_ms(self, source: Instance, item: ItemView) -> float:
        """What it takes to get an item from there, behind what is sent before it."""
        waiting = max(0.0, self.sending_until(source) - self.now_ms)
        return waiting + item.bytes() / float(source.pool.bandwidth[source.row])

    def fetch(self, source: Instance, item: ItemView) -> None:
        self.sends[source.slot] = self.now_ms + self.fetch_ms(source, item)

    def commit(self) -> None:
        """All is placed."""
        for slot, until in self.sends.items():
            source = self.fleet.by_slot[slot]
            source.pool.send_until[source.row] = until


class MediaPlacer:
    """Looks pictures up, and chooses encoders for those that have to be encoded.

    An item of a `predicted` request always comes from an encoder: engines of other makers learn
    from its answer what stands for the item, also where they hold its KV.
    """

    def __init__(self, config: MasterConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy

    def look_up(self, fleet: Fleet, request: ScheduleRequest, now_ms: float) -> list[ItemView]:
        """Every item with its holders and the soonest it can be ready."""
        pool = fleet.pools["encode"]
        soonest, token_ms = 0.0, self._config.encode_ms_per_token
        if pool.count:
            waits = np.maximum(pool.busy_until - now_ms, 0.0) + pool.base_ms + pool.penalty
            row = int(waits.argmin())
            soonest, token_ms = float(waits[row]), float(pool.token_ms[row])
        return [
            self._look_up(
                fleet,
                fleet.index(request.predicted),
                need,
                soonest + need.tokens * token_ms,
                now_ms,
            )
            for need in request.items
        ]

    def _look_up(
        self, fleet: Fleet, index: CacheIndex, need: MediaNeed, encoded_ms: float, now_ms: float
    ) -> ItemView:
        holders = index.media.holders(need.mm_hash)
        pending = index.pending.get(need.mm_hash)
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
            ready, alone = encoded_ms, need.tokens * self._config.encode_ms_per_token
        return ItemView(need, holders, pending, coming, ready, alone)

    def ready(
        self, fleet: Fleet, items: list[ItemView], pool: Pool, hits: Floats
    ) -> tuple[Floats, int]:
        """(ms until all embeddings are there, tokens from the first missing one on), for each row.

        An item costs nothing where the KV of its span, or the item itself, is.
        """
        ready, first = np.zeros(len(pool)), math.inf
        for item in items:
            if item.ready_ms == 0.0:
                continue
            first = min(first, item.need.offset)
            wait = np.where(pool.encodes > 0.0, item.alone_ms, item.ready_ms)
            wait[hits >= item.end] = 0.0
            for slot in slots_of(item.holders):
                if fleet.by_slot[slot].pool is pool:
                    wait[fleet.by_slot[slot].row] = 0.0
            ready = np.maximum(ready, wait)
        return ready, -1 if first == math.inf else int(first)

    def place(self, errand: Errand, items: list[ItemView]) -> list[ItemPlacement]:
        """A source for each item; encodes are charged."""
        return [self._place(errand, item) for item in items]

    def _place(self, errand: Errand, item: ItemView) -> ItemPlacement:
        name, at = item.need.mm_hash, errand.at
        if self._policy.sees_media and not errand.request.predicted:
            if errand.hit_tokens >= item.end:
                return ItemPlacement(name, "prefix")
            on_its_way = item.coming and at.guessed is not None
            if item.holders >> at.slot & 1 and not on_its_way:
                return ItemPlacement(name, "cached", at.target)
        if name in errand.held.encodes:
            charge = errand.held.encodes[name]
            target = errand.fleet.by_slot[int(charge.pool.slots[charge.row])].target
            return ItemPlacement(name, "pending", target)
        return self._fetch_or_encode(errand, item)

    def _fetch_or_encode(self, errand: Errand, item: ItemView) -> ItemPlacement:
        """The cheapest of: fetch from a holder, join an encode under way, encode once more."""
        name, pool = item.need.mm_hash, errand.fleet.pools["encode"]
        fetch_ms, source = math.inf, None
        if self._policy.sees_media:
            fetch_ms, source = self._source(errand, item)
        if source is None and (not pool.count or errand.at.info.role == "pdfusion"):
            return ItemPlacement(name, "local")
        row, encode_ms = -1, math.inf
        if pool.count and (source is None or fetch_ms > self._config.tie_ms):
            row, encode_ms = self._encoder(errand, item, must=source is None)
        if source is not None and fetch_ms <= encode_ms:
            if item.holders >> source.slot & 1:
                errand.fetch(source, item)
                return ItemPlacement(name, "cached", source.target)
            return ItemPlacement(name, "pending", source.target)
        return self._encode(errand, item, row, again=source is not None)

    def _encode(self, errand: Errand, item: ItemView, row: int, *, again: bool) -> ItemPlacement:
        """Count the encode at once, and let later requests join it."""
        fleet, now_ms = errand.fleet, errand.now_ms
        name, pool = item.need.mm_hash, fleet.pools["encode"]
        instance = fleet.by_slot[int(pool.slots[row])]
        work = float(pool.base_ms[row] + item.need.tokens * pool.token_ms[row])
        visible = now_ms + self._config.settle * 1e3
        charge = Charge(pool, row, visible, work, item.need.tokens)
        pool.charge(charge, now_ms)
        errand.held.encodes[name] = charge
        if self._policy.sees_media and not again:
            done = float(pool.busy_until[row])
            pending = PendingEncode(instance.slot, done, done + _STALE_MS, charge)
            fleet.index(errand.request.predicted).pending[name] = pending
        return ItemPlacement(name, "encode", instance.target)

    def _encoder(self, errand: Errand, item: ItemView, *, must: bool) -> tuple[int, float]:
        """(row, its cost in ms as `CostPolicy` reckons). Without any: an error if `must`, else
        an infinite cost."""
        pool, request = errand.fleet.pools["encode"], errand.request
        tokens, session = item.need.tokens, request.session
        view = encode_view(pool, tokens, pool.penalty, errand.now_ms, session)
        view.penalty = busy(pool, ENCODE, view.queue_ms, self._config)
        barred = avoided(pool, request.avoid) if request.avoid else None
        if barred is not None and others_stay(pool, barred):
            view.penalty = view.penalty + barred
        if least(view.penalty) > 0.0:
            if must:
                raise refusal(pool, "encode", view.queue_ms, barred)
            return -1, math.inf
        row = self._policy.pick(view)
        work = float(view.work_ms[row]) * (1.0 + self._config.work_weight)
        return row, float(view.queue_ms[row]) + work

    def _source(self, errand: Errand, item: ItemView) -> tuple[float, Instance | None]:
        """The cheapest worker to fetch the item from, holding it or about to."""
        best: tuple[float, Instance | None] = math.inf, None
        fleet, avoid, now_ms = errand.fleet, errand.request.avoid, errand.now_ms
        for slot in slots_of(item.holders)[:_MAX_HOLDERS]:
            instance = fleet.by_slot[slot]
            if _serves(instance, now_ms) and instance.info.instance_id not in avoid:
                cost = errand.fetch_ms(instance, item)
                if cost < best[0]:
                    best = cost, instance
        pending = item.pending
        if pending is not None:
            instance = fleet.by_slot[pending.slot]
            cost = max(0.0, pending.ready_at - now_ms) + errand.fetch_ms(instance, item)
            if cost < best[0] and instance.info.instance_id not in avoid:
                best = cost, instance
        return best


def _serves(instance: Instance, now_ms: float) -> bool:
    """Whether others can fetch embeddings there; a drained worker still hands out what it has."""
    return instance.pool.kind in _SERVING and instance.open_until <= now_ms
