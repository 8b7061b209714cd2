"""Is a published message the next one? Gaps, duplicates and restarts of one event source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from protocol.errors import InvalidRequest
from protocol.event_frames import parse_frames
from protocol.kv_events import EventBatch, decode_event_batch

Message = tuple[int, EventBatch]


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
        raise InvalidRequest("a batch without a time")
    return found[0], batch
