"""What the caches of a mock engine gain and lose, as cache events."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.types import GenerateRequest
from services.membership.events import CacheLog
from services.mock.embeddings import EmbeddingStore
from services.mock.kv_blocks import KVBlocks


class EventLog(CacheLog):
    """Collects events in order until the driver takes them; nothing if nobody listens."""

    def __init__(self, blocks: KVBlocks, store: EmbeddingStore, *, enabled: bool) -> None:
        super().__init__(blocks.block_size)
        self._blocks = blocks
        self._store = store
        self._enabled = enabled

    def stored(
        self, keys: Sequence[bytes], first: int, line: Sequence[int], source: GenerateRequest
    ) -> None:
        """Blocks first, first + 1, … of the token list `line` got a key; `keys` are those of all
        its blocks up to the last of them."""
        if self._enabled:
            self.collect()
            self.blocks_stored(keys, range(first, len(keys)), line, source)

    def cleared(self) -> None:
        """Every known prefix is forgotten."""
        self._blocks.removed.clear()
        if self._enabled:
            self.blocks_cleared()

    def embeddings_cleared(self) -> None:
        self._store.changes.clear()
        if self._enabled:
            super().embeddings_cleared()

    def collect(self) -> None:
        """Take over what the caches have noted of themselves."""
        if self._enabled:
            for key in self._blocks.removed:
                self.block_removed(key)
            self.flush()
            for name, rows in self._store.changes:
                self.embedding_changed(name, rows, rows * self._store.row_bytes)
        self._blocks.removed.clear()
        self._store.changes.clear()
