"""What the caches of a worker gain and lose, as cache events in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from protocol.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    short_key,
)
from protocol.types import GenerateRequest

MEDIUM = "GPU"  # vLLM's word for the pool, also where that is in host memory


class CacheLog:
    """Collects events until `take`."""

    def __init__(self, block_size: int) -> None:
        self.kv: list[CacheEvent] = []
        self.ec: list[CacheEvent] = []
        self._block_size = block_size
        self._removed: list[BlockHash] = []

    def blocks_stored(
        self,
        keys: Sequence[bytes],
        numbers: Sequence[int],
        tokens: Sequence[int],
        source: GenerateRequest,
        lora_name: str | None = None,
    ) -> None:
        """The blocks of these numbers, ascending, of a request's token list got their keys; `keys`
        are those of its blocks from the first on. `lora_name`: the adapter that computed them."""
        self.flush()
        for first, end in _runs(numbers):
            self.kv.append(self._stored(keys, first, end, tokens, source, lora_name))

    def _stored(
        self,
        keys: Sequence[bytes],
        first: int,
        end: int,
        tokens: Sequence[int],
        source: GenerateRequest,
        lora_name: str | None,
    ) -> BlockStored:
        size = self._block_size
        return BlockStored(
            block_hashes=[short_key(key) for key in keys[first:end]],
            parent_block_hash=short_key(keys[first - 1]) if first else None,
            token_ids=list(tokens[first * size : end * size]),
            block_size=size,
            medium=MEDIUM,
            lora_name=lora_name,
            extra_keys=[_extra(n * size, (n + 1) * size, source) for n in range(first, end)],
        )

    def block_removed(self, key: bytes) -> None:
        # Collected: a step may remove many blocks, and one event names them all.
        self._removed.append(short_key(key))

    def tier_stored(self, medium: str, keys: Sequence[bytes]) -> None:
        """A tier below the pool holds these too. Their contents were told of with the pool's."""
        self.flush()
        if keys:
            names: list[BlockHash] = [short_key(key) for key in keys]
            self.kv.append(BlockStored(names, block_size=self._block_size, medium=medium))

    def tier_removed(self, medium: str, keys: Sequence[bytes]) -> None:
        self.flush()
        if keys:
            self.kv.append(BlockRemoved([short_key(key) for key in keys], medium))

    def blocks_cleared(self) -> None:
        """Every known prefix is forgotten."""
        # All blocks go: naming some of them first says nothing more.
        self._removed.clear()
        self.kv.append(AllBlocksCleared())

    def embedding_changed(self, mm_hash: str, rows: int, size_bytes: int) -> None:
        """An embedding came, or with 0 rows left, where others may fetch it from."""
        came = EmbeddingStored(mm_hash, rows, size_bytes, MEDIUM) if rows else None
        self.ec.append(came or EmbeddingRemoved(mm_hash, MEDIUM))

    def flush(self) -> None:
        """Say of blocks that are gone before anything is said of later ones."""
        if self._removed:
            self.kv.append(BlockRemoved(self._removed, MEDIUM))
            self._removed = []

    def take(self) -> tuple[list[CacheEvent], list[CacheEvent]]:
        """(of blocks, of embeddings) since the last time."""
        self.flush()
        taken = self.kv, self.ec
        self.kv, self.ec = [], []
        return taken


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, past the last) of each run of consecutive numbers."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1] + 1
            start = i


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
