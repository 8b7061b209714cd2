"""The sources of one request's pictures while they are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.placement import MediaNeed, ScheduleRequest
from protocol.refs import fits
from services.master.fleet.cache_index import PendingEncode
from services.master.fleet.columns import Floats
from services.master.fleet.fleet import Fleet
from services.master.fleet.instance import Instance
from services.master.fleet.pool import Pool
from services.master.index.holder_sets import slots_of
from services.master.placement.reservation import Reservation

_EMBEDDING_BYTES = 8192  # of one token, where a request does not say


@dataclass(slots=True)
class ItemSources:
    """Where one picture can come from. `holders`: slots, as a bit mask. `pending`: an encode that
    may be joined; `coming`: whether any is under way. `ready_ms`: until it is there at the best,
    `alone_ms` the same for a worker that encodes by itself what no worker has."""

    need: MediaNeed  # the picture, by its media hash
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
class MediaPlan:
    """The sources of a request's pictures while they are chosen."""

    fleet: Fleet  # of its model
    request: ScheduleRequest  # what is placed
    at: Instance  # the worker that prefills it
    hit_tokens: int  # what that holds of the prompt
    # Encodes are charged to it at once, so that the next picture is not sent to a queue that looks
    # empty
    held: Reservation
    now_ms: float  # of the caller's monotonic clock
    # By slot, until when it will have sent what it was asked for. They count once all is placed: a
    # request that is refused in the end delays no transfer.
    sends: dict[int, float] = field(default_factory=dict)
    local_ms: float = 0.0  # work of the items that the worker at `at` is to encode
    ready_ms: float = 0.0  # until all embeddings are there that were placed so far

    def comes_after(self, ms: float) -> None:
        """An item's embeddings are there after so long."""
        self.ready_ms = max(self.ready_ms, ms)

    @property
    def can_encode(self) -> bool:
        """Whether the worker that prefills can help encoders out."""
        return self.at.info.encodes

    def reads(self, source: Instance) -> bool:
        """Whether the worker that prefills can read embeddings there."""
        return fits(source.info.ec_compatibility, self.at.info.ec_compatibility)

    def encoded_there_ms(self, item: ItemSources) -> float:
        """What it takes until the worker that prefills has encoded an item by itself."""
        waiting = float(self.at.pool.busy_until[self.at.row]) - self.now_ms
        return max(0.0, waiting) + self.local_ms + item.alone_ms

    def held_by(self, pool: Pool, item: ItemSources) -> Floats:
        """Tokens of an item whose embeddings each worker of a pool has: all or none. [rows]"""
        found = pool.none
        for slot in slots_of(item.holders):
            at = self.fleet.by_slot[slot]
            if at.pool is pool:
                found = found.copy() if found is pool.none else found
                found[at.row] = item.need.tokens
        return found

    def sending_until(self, source: Instance) -> float:
        until = self.sends.get(source.slot)
        return float(source.pool.send_until[source.row]) if until is None else until

    def fetch_ms(self, source: Instance, item: ItemSources) -> float:
        """What it takes to get an item from there, behind what is sent before it."""
        waiting = max(0.0, self.sending_until(source) - self.now_ms)
        return waiting + item.bytes() / float(source.pool.bandwidth[source.row])

    def fetch(self, source: Instance, item: ItemSources) -> None:
        self.sends[source.slot] = self.now_ms + self.fetch_ms(source, item)

    def commit(self) -> None:
        """All is placed."""
        for slot, until in self.sends.items():
            source = self.fleet.by_slot[slot]
            source.pool.send_until[source.row] = until
