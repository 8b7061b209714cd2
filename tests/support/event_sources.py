"""An event source and a reader that follows it, without sockets."""

import random
from collections import Counter

from protocol.event_frames import SNAPSHOT, end_frames, event_frames
from protocol.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EventBatch,
    encode_batch,
)
from services.master.events.follower import Follower


class Source:
    """A publisher with a replay buffer, and the state a faithful reader would have."""

    def __init__(self, keep: int = 1000, snapshots: bool = False) -> None:
        self.sent: list[list[bytes]] = []
        self.keep = keep
        self.snapshots = snapshots
        self.state: set[int] = set()
        self.ts = 0.0

    def publish(self, event: CacheEvent) -> list[bytes]:
        apply(self.state, event)
        self.ts += 1.0
        frames = event_frames("kv", len(self.sent), encode_batch(self.ts, [event]))
        self.sent.append(frames)
        return frames

    def restart(self) -> None:
        self.sent, self.state = [], set()

    def answers(self, start: int) -> list[list[bytes]]:
        if start == SNAPSHOT:
            return [*self._snapshot(), end_frames()]
        first = max(start, len(self.sent) - self.keep)
        return [*self.sent[first:], end_frames()]

    def _snapshot(self) -> list[list[bytes]]:
        if not self.snapshots or not self.sent:
            return []
        events = [AllBlocksCleared(), BlockStored(list(self.state))]
        return [event_frames("kv", len(self.sent) - 1, encode_batch(self.ts, events))]


class Reader:
    """The far end: a set of keys, and a follower that asks `source`."""

    def __init__(self, source: Source, replay: bool = True, serve: bool = True) -> None:
        self.source = source
        self.state: set[int] = set()
        self.asked: list[int] = []
        self.counts: Counter[str] = Counter()
        self.follower = Follower(self, self._ask if replay else None, self.counts)
        if serve:
            self.serve()

    def _ask(self, start: int) -> None:
        """Makes answers to an earlier question void."""
        self.asked[:] = [start]

    def serve(self) -> None:
        while self.asked:
            for frames in self.source.answers(self.asked.pop()):
                self.follower.replayed(frames)
                if self.asked:  # another question voids the answers to this one
                    break

    def apply(self, batch: EventBatch) -> None:
        for event in batch.events:
            apply(self.state, event)

    def forget(self, *, blocks: bool) -> None:
        assert blocks
        self.state.clear()


def apply(state: set[int], event: CacheEvent) -> None:
    if isinstance(event, BlockStored):
        state |= {int(key) for key in event.block_hashes}
    elif isinstance(event, BlockRemoved):
        state -= {int(key) for key in event.block_hashes}
    else:
        state.clear()


def random_event(rng: random.Random) -> CacheEvent:
    keys = [rng.randrange(30) for _ in range(3)]
    if rng.random() < 0.02:
        return AllBlocksCleared()
    return BlockStored(list(keys)) if rng.random() < 0.6 else BlockRemoved(list(keys))


def unanswered(reader: Reader) -> None:
    """The question that is out gets no answer."""
    assert reader.asked
    reader.asked.clear()
    reader.follower.give_up()
