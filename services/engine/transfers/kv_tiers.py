"""KV below the pool: blocks that no request uses go to host memory and to disk, and come back
before a prompt that starts with them is computed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from connectors.tiers.base import TierStore
from protocol.errors import TriptychError
from services.engine.scheduling.idle_blocks import IdleBlocks
from services.engine.scheduling.request import Request
from services.engine.scheduling.scheduler import Scheduler
from services.engine.scheduling.seams import Clock, Meter, NotFinite
from services.engine.transfers.tier_offloads import Tier, TierOffloads
from services.engine.transfers.tier_onboards import TierOnboards
from services.engine.transfers.tier_shelf import TierShelf
from services.membership.events import CacheLog


class KVTiers:
    """Owns the stores, and the blocks that are being copied into. Without stores it does nothing.

    A block lies in the pool and in any number of tiers under one content key. Its contents never
    change, so that tiers hold copies, and nothing is copied back when the pool evicts it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stores: Sequence[TierStore],
        idle: IdleBlocks,
        meter: Meter,
        clock: Clock,
        log: CacheLog | None = None,
    ) -> None:
        """`stores` from the first below the pool on; `idle` is the block manager's."""
        self._scheduler = scheduler
        self.idle = idle
        self.tiers = [Tier(store, TierShelf(store.capacity, store.kept())) for store in stores]
        self._offloads = TierOffloads(self.tiers, idle, clock, log)
        self._onboards = TierOnboards(
            self.tiers, self._offloads, scheduler.blocks, meter, clock, log
        )
        if log is not None:
            # Files that an earlier process has left: masters hear of them at the start.
            for tier in self.tiers:
                log.tier_stored(tier.store.medium, tier.shelf.keys())

    @property
    def active(self) -> bool:
        """Whether `advance` will have something to do soon."""
        return bool(self._onboards) or self._offloads.active

    @property
    def next_time(self) -> float | None:
        """When a request stops waiting for what is on its way, None if none waits."""
        return self._onboards.next_time

    @property
    def dropped(self) -> int:
        """Blocks that were evicted from the pool or a tier before the next tier had them."""
        return self.idle.dropped + self._offloads.dropped

    @property
    def given_up(self) -> int:
        """Requests that have computed KV that was on its way."""
        return self._onboards.given_up

    def advance(self) -> None:
        """What has been copied counts from here on; what has become idle is copied next."""
        if self.tiers:
            # First: slots that are read no more can be filled in the same step.
            self._onboards.poll()
            self._offloads.advance()

    def awaits(self, request: Request, matched: Sequence[int]) -> bool:
        """Whether a request that could start from the `matched` blocks had better wait for more.
        The first call begins to bring it."""
        if not self.tiers or request.scores_prompt:
            return False
        keys, running = self._scheduler.usable_keys(request), len(self._scheduler.running)
        # Each request that runs may need one block more for its next token.
        return self._onboards.awaits(request, keys, matched, reserved=running)

    def forget(self, request: Request) -> None:
        """A request is gone."""
        self._onboards.forget(request)

    def failed(self, request: Request, error: TriptychError) -> None:
        """Where a request's KV gave no finite numbers, the pool and all tiers forget it, the prefix
        that it found there included: which of its blocks is broken is not known."""
        if isinstance(error, NotFinite):
            keys = request.keys.extend(request.tokens)
            self._scheduler.blocks.forget(keys)
            self._offloads.forget(keys)

    def clear(self) -> None:
        """Forget every block, as the pool does when its prefix cache is reset."""
        self._offloads.clear()
        self._onboards.clear()

    def close(self) -> None:
        """Ends what is being copied: nothing writes to the pool afterwards."""
        # So that each is closed, even where another one fails.
        with contextlib.ExitStack() as all_of_them:
            for tier in self.tiers:
                all_of_them.callback(tier.store.close)

    def owned_blocks(self) -> list[list[int]]:
        return self._onboards.owned_blocks()

    def check_integrity(self) -> list[str]:
        """[] if every slot is accounted for; to be asked while nothing is being copied."""
        if self.active:
            return []
        return [
            f"{tier.store.name} tier: {problem}"
            for tier in self.tiers
            for problem in tier.shelf.check_integrity()
        ]
