"""What a cache that publishes no events is thought to hold: what was placed there lately."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from services.master.index.prefix_index import HolderIndex

K = TypeVar("K", bound=Hashable)


class PredictedCache(Generic[K]):
    """Keys of one slot, oldest use first; each stays `ttl_ms` after its last use, `limit` at most.

    Dynamo's approximate mode (`--no-router-kv-events`) works so, with 120 s.
    """

    def __init__(self, index: HolderIndex[K], slot: int, ttl_ms: float, limit: int) -> None:
        self._index = index
        self._slot = slot
        self._ttl_ms = ttl_ms
        self._limit = limit
        self._expiry: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._expiry)

    def use(self, keys: Iterable[K], now_ms: float, limit: int = 0) -> None:
        """The worker has computed or read `keys`. Later keys of a prompt go first when full.
        `limit`: the bound from now on, if more is known of it than before."""
        self._limit = limit or self._limit
        used = list(keys)[: self._limit]
        self._index.add(self._slot, used)
        table, expiry = self._expiry, now_ms + self._ttl_ms
        for key in reversed(used):
            table.pop(key, None)  # a dictionary keeps the order of insertion
            table[key] = expiry
        if len(table) > self._limit:
            self._drop(list(islice(table, len(table) - self._limit)))

    def expire(self, now_ms: float) -> None:
        gone = []
        for key, expiry in self._expiry.items():
            if expiry > now_ms:
                break
            gone.append(key)
        self._drop(gone)

    def _drop(self, keys: list[K]) -> None:
        for key in keys:
            del self._expiry[key]
        self._index.remove(self._slot, keys)


@dataclass(slots=True)
class PredictedCaches:
    """Of one worker: KV blocks by key, embeddings by media hash."""

    blocks: PredictedCache[int]
    media: PredictedCache[str]

    def expire(self, now_ms: float) -> None:
        self.blocks.expire(now_ms)
        self.media.expire(now_ms)
