"""What workers' cache events change: whose cache holds what, in the indices of their model."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    EventBatch,
    short_key,
)
from services.master.fleet.cache_index import PendingEncode
from services.master.fleet.instance import Instance
from services.master.index.foreign_blocks import ForeignBlocks

_LONGEST_NAME = 256  # no request can ask for longer ones
_GPU = (None, "GPU", "gpu")


@dataclass
class EventCounts:
    """What has come in by events of one model."""

    blocks_stored: int = 0  # KV blocks
    blocks_removed: int = 0  # KV blocks
    blocks_unmatched: int = 0  # of another engine, which cannot be named as ours are
    media_stored: int = 0  # embeddings of media items
    media_removed: int = 0  # embeddings of media items
    ignored: int = 0  # events of unknown kinds, media or names


class CacheEvents:
    """Events of the workers of one model. `pending`: pictures that encoders were asked for, of
    which an event says that they are there. `predicted_blocks`: what a cache may hold that does not
    say how large it is."""

    def __init__(
        self, model: str, pending: dict[str, PendingEncode], predicted_blocks: int
    ) -> None:
        self.counts = EventCounts()
        self._model = model
        self._pending = pending
        self._predicted_blocks = predicted_blocks

    def apply(self, instance: Instance, batch: EventBatch, source: int = 0) -> None:
        """Events of one source of a worker. A malformed event changes nothing and is counted."""
        self.counts.ignored += batch.unknown
        for event in batch.events:
            self._apply(instance, event, source)

    def _apply(self, instance: Instance, event: CacheEvent, source: int) -> None:
        match event:
            case BlockStored(medium=medium) if medium in _GPU:
                self._stored(instance, event, source)
            case BlockRemoved(medium=medium) if medium in _GPU:
                self._removed(instance, event, source)
            case BlockStored() | BlockRemoved() if instance.held_below(event.medium) is not None:
                self._changed_below(instance, event, source)
            case AllBlocksCleared():
                instance.forget_blocks(source)
            case EmbeddingStored() if len(event.mm_hash) <= _LONGEST_NAME:
                self.counts.media_stored += 1
                instance.held_media.add(source, (event.mm_hash,))
                pending = self._pending.get(event.mm_hash)
                # Of another worker's encode of the same picture it says nothing.
                if pending is not None and pending.slot == instance.slot:
                    del self._pending[event.mm_hash]
            case EmbeddingRemoved():
                self.counts.media_removed += 1
                instance.held_media.remove(source, (event.mm_hash,))
            case AllEmbeddingsCleared():
                instance.held_media.drop(source)
            case _:
                self.counts.ignored += 1

    def _stored(self, instance: Instance, event: BlockStored, source: int) -> None:
        self.counts.blocks_stored += len(event.block_hashes)
        if instance.info.foreign:
            keys = self._foreign(instance, source).stored(event)
            self.counts.blocks_unmatched += len(event.block_hashes) - len(keys)
        else:
            keys = list(map(short_key, event.block_hashes))
        instance.held_blocks.add(source, keys)

    def _removed(self, instance: Instance, event: BlockRemoved, source: int) -> None:
        self.counts.blocks_removed += len(event.block_hashes)
        if instance.info.foreign:
            keys = self._foreign(instance, source).removed(event.block_hashes)
        else:
            keys = list(map(short_key, event.block_hashes))
        instance.held_blocks.remove(source, keys)

    def _changed_below(
        self, instance: Instance, event: BlockStored | BlockRemoved, source: int
    ) -> None:
        held, keys = instance.held_below(event.medium), list(map(short_key, event.block_hashes))
        assert held is not None
        if isinstance(event, BlockStored):
            self.counts.blocks_stored += len(keys)
            held.add(source, keys)
        else:
            self.counts.blocks_removed += len(keys)
            held.remove(source, keys)

    def _foreign(self, instance: Instance, source: int) -> ForeignBlocks:
        """The names of a source's blocks: another rank's are another engine's."""
        found = instance.foreign.get(source)
        if found is None:
            found = ForeignBlocks(self._model, instance.info.revision, self._predicted_blocks)
            instance.foreign[source] = found
        # Of one that was added by hand it is read only later how large its cache is.
        total = int(instance.pool.total_blocks[instance.row])
        found.limit = max(2 * total, self._predicted_blocks)
        return found
