"""What was heard of one event source: is a published message the next one (gaps, duplicates,
restarts), and is its cache known, all of it or a part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from protocol.errors import InvalidRequest
from protocol.event_frames import parse_frames
from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    decode_event_batch,
)

Message = tuple[int, EventBatch]
_BLOCK_EVENTS = (BlockStored, BlockRemoved, AllBlocksCleared)
_CLEARED = (AllBlocksCleared, AllEmbeddingsCleared)


class Order(Enum):
    """`NEXT` may be applied. `GAP`: messages before it are missing. `DUPLICATE`: it came before.
    `RESTART`: its publisher counts from the beginning again."""

    NEXT = "next"
    GAP = "gap"
    DUPLICATE = "duplicate"
    RESTART = "restart"


@dataclass
class SequenceTracker:
    """`last` is the newest message applied, -1 before the first, `ts` the publisher's time of it.

    A message with an old number is a restarted publisher's if its time is newer than anything
    heard, for a publisher's own clock goes forward.
    """

    last: int = -1
    ts: float = float("-inf")

    def order(self, sequence: int, ts: float) -> Order:
        if sequence > self.last:
            return Order.NEXT if sequence == self.last + 1 else Order.GAP
        return Order.RESTART if ts > self.ts else Order.DUPLICATE

    def advance(self, sequence: int, ts: float) -> None:
        # Never back: under a clock that was set back, an old message would look like a restart's.
        self.last, self.ts = sequence, max(self.ts, ts)

    def restart(self) -> None:
        self.last, self.ts = -1, float("-inf")


def parse_message(frames: Sequence[bytes]) -> Message | None:
    """(sequence number, batch), None for a replay's end; `InvalidRequest` for what is neither."""
    found = parse_frames(frames)
    if found is None:
        return None
    batch = decode_event_batch(found[1])
    if not math.isfinite(batch.ts):  # no later message would ever be a newer one
        raise InvalidRequest("the batch of cache events has no finite time (ts)")
    return found[0], batch


class Sink(Protocol):
    """Where events go. `forget` drops what this source has said, of blocks or of media."""

    def apply(self, batch: EventBatch) -> None: ...

    def forget(self, *, blocks: bool) -> None: ...


class HeardCache:
    """`lacking`: the cache may hold more than was heard. `replayed_all`: a replay from the first
    message on has been asked for since, and would bring nothing more."""

    def __init__(self, sink: Sink) -> None:
        self.lacking = True
        self.replayed_all = False
        self._sink = sink
        self._blocks: bool | None = None

    def apply(self, batch: EventBatch, *, in_snapshot: bool) -> None:
        """A batch in its order. A cache that was cleared holds what is heard from then on, and no
        more; a snapshot may begin with a clearing, and is whole only at its end."""
        if batch.events and self._blocks is None:
            self._blocks = isinstance(batch.events[0], _BLOCK_EVENTS)
        if not in_snapshot and any(isinstance(e, _CLEARED) for e in batch.events):
            self.lacking = False
        self._sink.apply(batch)

    def distrust(self) -> None:
        """Something went wrong with what the source has said."""
        self.lacking = True
        self.replayed_all = False

    def forget(self) -> None:
        """Nothing that was heard counts any more. A source that has said nothing yet has nothing to
        forget; which kind of cache it speaks of is not known before."""
        self.distrust()
        if self._blocks is not None:
            self._sink.forget(blocks=self._blocks)
