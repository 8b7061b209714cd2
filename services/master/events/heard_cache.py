"""A source's cache as far as it was heard: blocks or embeddings, all of it or a part."""

from __future__ import annotations

from typing import Protocol

from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
)

_BLOCK_EVENTS = (BlockStored, BlockRemoved, AllBlocksCleared)
_CLEARED = (AllBlocksCleared, AllEmbeddingsCleared)


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
