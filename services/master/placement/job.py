"""A request while it is placed, and what every worker has of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from protocol.placement import ScheduleRequest
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.pool import Pool
from services.master.placement.media_plan import ItemSources


@dataclass(slots=True)
class Job:
    """A request while it is placed."""

    request: ScheduleRequest  # what is asked for
    fleet: Fleet  # the workers of its model
    now_ms: float  # of the caller's monotonic clock
    new_tokens: int  # expected output
    items: list[ItemSources]  # where its pictures can come from
    blocks: Floats  # length in blocks of the prefix at every slot. [slots]
    held: Floats  # prompt tokens whose KV is there; the last one is always computed. [slots]
    avoid: frozenset[str]  # ids of instances that get no part of it
    # Prompt tokens whose KV is there or in host memory, and those that are there, in host memory or
    # on disk; None if no worker has tiers. [slots] each
    below: tuple[Floats, Floats] | None = None

    @property
    def waits_for_media(self) -> bool:
        """Engines of other makers are asked to prefill once all items are encoded."""
        return bool(self.items) and self.request.predicted

    @property
    def media_end(self) -> int:
        """Prompt tokens up to the last picture's last."""
        return max((item.offset + item.tokens for item in self.request.items), default=0)

    def hits(self, pool: Pool) -> Floats:
        """`held` by the rows of a pool. [rows]"""
        return self.held.take(pool.slots)

    def saved_below(self, pool: Pool) -> Floats:
        """ms of prefill that KV in lower tiers saves: none where a worker has not measured its
        tier yet, or would compute it faster. [rows]"""
        saved = np.zeros(len(pool))
        if self.below is None:
            return saved
        before = self.hits(pool)
        for reach, token_ms in zip(self.below, (pool.host_ms, pool.disk_ms), strict=True):
            there = np.maximum(reach.take(pool.slots), before)
            gain = np.where(token_ms > 0.0, pool.token_ms - token_ms, 0.0)
            saved += (there - before) * np.maximum(gain, 0.0)
            before = there
        return saved
