"""KV blocks on their way down: from the pool into the first tier, from there into the next."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from connectors.tiers.base import TierCopy, TierStore
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.scheduling.seams import Clock
from services.engine.transfers.tier_shelf import TierShelf
from services.membership.events import CacheLog

logger = logging.getLogger(__name__)

_BATCH = 64  # blocks of one copy: a tier is busy with no more than these
_PAUSE_S = 10.0  # after a copy that failed, as on a full disk
_STAGING = 4 * _BATCH  # slots: a tier with no more is above all a way to the one below


@dataclass(eq=False)
class Tier:
    """One tier: where its blocks are, what is in it, and what has been counted."""

    store: TierStore  # where blocks are copied to and from
    shelf: TierShelf  # which of them hold what
    block_s: float = 0.0  # how long a block takes to come back, 0 while it is unknown
    offloaded: int = 0  # blocks that came into it
    onboarded: int = 0  # blocks that went back into the pool
    failed: int = 0  # blocks that could not be written, or were not what was written
    hit_tokens: int = 0  # prompt tokens whose KV came from it


@dataclass(eq=False)
class _Batch:
    """`rows` are blocks of the pool, or slots of the tier above, which are pinned. `valid`: what
    the copy reads still counts."""

    rows: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    valid: bool = True
    copy: TierCopy | None = None


@dataclass(eq=False)
class _Level:
    """A tier and what is being copied into it; `waiting`: keys of the tier above that it lacks."""

    tier: Tier
    waiting: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    batch: _Batch | None = None
    paused_until: float = float("-inf")


class TierOffloads:
    """One batch at a time into each tier. What comes faster than it can be copied is dropped: from
    the pool when its block is needed, from a tier when its slot is. A small tier keeps what waits
    for the one below instead, and takes less."""

    def __init__(
        self, tiers: Sequence[Tier], idle: IdleBlocks, clock: Clock, log: CacheLog | None
    ) -> None:
        self._levels = [_Level(tier) for tier in tiers]
        self._idle = idle
        self._clock = clock
        self._log = log
        self.dropped = 0  # blocks that a tier evicted before they had been copied to the next one

    @property
    def active(self) -> bool:
        """Whether something is being copied, or could be."""
        now = self._clock()
        return any(
            level.batch is not None or (self._has_work(n) and now >= level.paused_until)
            for n, level in enumerate(self._levels)
        )

    def _has_work(self, number: int) -> bool:
        return bool(self._levels[number].waiting if number else self._idle)

    def advance(self) -> None:
        """Settle what has been copied, begin to copy what waits."""
        for number, level in enumerate(self._levels):
            self._settle(number, level)
        # The lowest first: it pins what it reads, which the tier above then does not evict.
        for number, level in reversed([*enumerate(self._levels)]):
            if level.batch is None and self._clock() >= level.paused_until:
                self._begin(number, level)

    def _begin(self, number: int, level: _Level) -> None:
        if not self._has_work(number):
            return
        shelf, batch = level.tier.shelf, _Batch()
        evictable = shelf.oldest(_BATCH, self._held_for_below(number))
        # No more than find a slot: what is taken from a queue is not put back.
        most = min(_BATCH, shelf.num_free + len(evictable))
        if number:
            self._take_from_above(number, batch, most)
        else:
            taken = self._idle.take(most, batch, shelf.__contains__)
            batch.rows, batch.keys = list(taken), list(taken.values())
        if batch.rows:
            self._evict(number, evictable[: max(0, len(batch.rows) - shelf.num_free)])
            batch.slots = shelf.fill(len(batch.rows))
            batch.copy = level.tier.store.save(batch.rows, batch.keys, batch.slots)
            level.batch = batch

    def _held_for_below(self, number: int) -> Container[bytes]:
        """Keys that a small tier does not evict, as the one below is going to take them."""
        if number + 1 == len(self._levels):
            return ()
        below, capacity = self._levels[number + 1], self._levels[number].tier.shelf.capacity
        takes = self._clock() >= below.paused_until
        return below.waiting if takes and capacity <= _STAGING else ()

    def _take_from_above(self, number: int, batch: _Batch, most: int) -> None:
        waiting, above = self._levels[number].waiting, self._levels[number - 1].tier.shelf
        while waiting and len(batch.keys) < most:
            key, _ = waiting.popitem(last=False)
            # Since it was queued it may have been found broken above, or have come here.
            if key in above and key not in self._levels[number].tier.shelf:
                batch.keys.append(key)
        batch.rows = above.pin(batch.keys)

    def _evict(self, number: int, keys: Sequence[bytes]) -> None:
        self.remove(number, keys)
        for below in self._levels[number + 1 : number + 2]:
            lost = [key for key in keys if key in below.waiting]
            self.dropped += len(lost)
            for key in lost:
                del below.waiting[key]

    def remove(self, number: int, keys: Sequence[bytes]) -> None:
        """A tier holds these no more."""
        tier = self._levels[number].tier
        gone = tier.shelf.remove(keys)
        tier.store.remove(gone)
        if self._log is not None:
            self._log.tier_removed(tier.store.medium, gone)

    def _settle(self, number: int, level: _Level) -> None:
        batch = level.batch
        done = batch.copy.poll() if batch is not None and batch.copy is not None else None
        if batch is None or done is None:
            return
        level.batch = None
        if number:
            self._levels[number - 1].tier.shelf.unpin(batch.rows)
        stored: list[bytes] = []
        for row, key, slot, whole in zip(
            batch.rows, batch.keys, batch.slots, done.whole, strict=True
        ):
            # A block of the pool may be evicted while it is copied; a slot above is pinned.
            valid = batch.valid and (number > 0 or self._idle.copied(row, batch))
            if level.tier.shelf.filled(slot, key if whole and valid else None):
                stored.append(key)
        self._stored(number, stored)
        self._note_failures(level, sum(not whole for whole in done.whole))
        # The tier was cleared meanwhile: what this batch has written since goes, too.
        if not batch.valid:
            level.tier.store.remove(batch.keys)

    def _stored(self, number: int, keys: list[bytes]) -> None:
        tier = self._levels[number].tier
        tier.offloaded += len(keys)
        if self._log is not None:
            self._log.tier_stored(tier.store.medium, keys)
        for below in self._levels[number + 1 : number + 2]:
            below.waiting.update((key, None) for key in keys if key not in below.tier.shelf)

    def _note_failures(self, level: _Level, count: int) -> None:
        if not count:
            return
        tier = level.tier
        tier.failed += count
        level.paused_until = self._clock() + _PAUSE_S
        logger.warning(
            "%d KV blocks could not be written to the %s tier, which takes none for %.0f s",
            count, tier.store.name, _PAUSE_S,
        )  # fmt: skip

    def forget(self, keys: Sequence[bytes]) -> None:
        """No tier holds these any more, nor gets them from a copy that is under way."""
        for number, level in enumerate(self._levels):
            for key in keys:
                level.waiting.pop(key, None)
            if level.batch is not None and not set(keys).isdisjoint(level.batch.keys):
                level.batch.valid = False
            self.remove(number, keys)

    def clear(self) -> None:
        """Every tier forgets what it holds, and what is on its way there does not count."""
        for level in self._levels:
            level.waiting.clear()
            if level.batch is not None:
                level.batch.valid = False
            tier = level.tier
            tier.store.remove(tier.shelf.remove(tier.shelf.keys()))
