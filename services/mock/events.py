"""What the caches of a mock engine gain and lose, as cache events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.kv_events import (
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    short_key,
)
from protocol.types import GenerateRequest
from services.mock.embeddings import EmbeddingStore
from services.mock.kv_blocks import KVBlocks

_MEDIUM = "GPU"


class EventLog:
    """Collects events in order until the driver takes them; nothing if nobody listens."""

    def __init__(self, blocks: KVBlocks, store: EmbeddingStore, *, enabled: bool) -> None:
        self.kv: list[CacheEvent] = []
        self.ec: list[CacheEvent] = []
        self._blocks = blocks
        self._store = store
        self._enabled = enabled

    def stored(
        self, keys: Sequence[bytes], first: int, line: Sequence[int], source: GenerateRequest
    ) -> None:
        """Blocks first, first + 1, … of the token list `line` got a key; `keys` are those of all
        its blocks up to the last of them."""
        if not self._enabled:
            return
        self.collect()
        size = self._blocks.block_size
        spans = [(n * size, (n + 1) * size) for n in range(first, len(keys))]
        self.kv.append(
            BlockStored(
                block_hashes=[short_key(key) for key in keys[first:]],
                parent_block_hash=short_key(keys[first - 1]) if first else None,
                token_ids=list(line[first * size : len(keys) * size]),
                block_size=size,
                medium=_MEDIUM,
                extra_keys=[_extra(start, end, source) for start, end in spans],
            )
        )

    def cleared(self) -> None:
        """Every known prefix is forgotten."""
        self._blocks.removed.clear()
        if self._enabled:
            self.kv.append(AllBlocksCleared())

    def embeddings_cleared(self) -> None:
        self._store.changes.clear()
        if self._enabled:
            self.ec.append(AllEmbeddingsCleared())

    def collect(self) -> None:
        """Take over what the caches have noted of themselves."""
        blocks, store = self._blocks, self._store
        if self._enabled:
            if blocks.removed:
                names: list[int | bytes] = [short_key(key) for key in blocks.removed]
                self.kv.append(BlockRemoved(names, _MEDIUM))
            for name, rows in store.changes:
                size = rows * store.row_bytes
                came = EmbeddingStored(name, rows, size, _MEDIUM) if rows else None
                self.ec.append(came or EmbeddingRemoved(name, _MEDIUM))
        blocks.removed.clear()
        store.changes.clear()


def _extra(start: int, end: int, source: GenerateRequest) -> list[Any] | None:
    """What a block's values depend on beside its tokens: items that overlap it, each with the
    offset from the block's start to the item's; for the first block the cache salt."""
    found: list[Any] = [
        [item.mm_hash, item.offset - start]
        for item in source.mm_items
        if item.offset < end and item.end > start
    ]
    if source.cache_salt and start == 0:
        found.append(source.cache_salt)
    return found or None
