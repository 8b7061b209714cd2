"""What a cache that publishes no events is thought to hold: what was placed there lately."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from services.master.index.prefix_index import HolderIndex

K = TypeVar("K", bound=Hashable)

_LARGER, _SMALLER = 1.001, 0.95  # balanced where one key in fifty is not there


class PredictedCache(Generic[K]):
    """Keys of one slot, oldest use first; each stays `ttl_ms` after its last use, `limit` at most.

    Dynamo's approximate mode (`--no-router-kv-events`) works so, with 120 s. How many the cache
    has room for, it does not say: `found` and `missed` learn it from keys that were or were not
    where they were thought to be. `limit` bounds what is learnt. Of a cache that is full the share
    `kept` is thought to stay.
    """

    def __init__(
        self, index: HolderIndex[K], slot: int, ttl_ms: float, limit: int, kept: float = 1.0
    ) -> None:
        self._index = index
        self._slot = slot
        self._ttl_ms = ttl_ms
        self._limit = limit
        self._kept = kept
        self._room = float(limit)
        self._expiry: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._expiry)

    def use(self, keys: Iterable[K], now_ms: float, limit: int = 0) -> None:
        """The worker has computed or read `keys`. Later keys of a prompt go first when full.
        `limit`: the bound from now on, if more is known of it than before."""
        if limit:
            self._limit, self._room = limit, float(limit)
        room = int(self._room)
        used = list(keys)[:room]
        self._index.add(self._slot, used)
        table, expiry = self._expiry, now_ms + self._ttl_ms
        for key in reversed(used):
            table.pop(key, None)  # a dictionary keeps the order of insertion
            table[key] = expiry
        if len(table) > room:
            # However much is dropped, the prompt that was just placed stays whole.
            stay = max(len(used), int(self._kept * room))
            self._drop(list(islice(table, max(0, len(table) - stay))))

    def found(self) -> None:
        """A key was where it was thought to be: there may be room for more."""
        self._room = min(self._limit, self._room * _LARGER)

    def missed(self, key: K) -> None:
        """`key` was not where it was thought to be. If half of the others have been used since, the
        cache has less room than thought; if not, something else has removed it."""
        table = self._expiry
        # Oldest use first, so the median of the expiries is the one in the middle.
        middle = next(islice(table.values(), len(table) // 2, None), 0.0)
        if table.get(key, math.inf) > middle:
            return
        self._room = max(1.0, _SMALLER * min(self._room, len(table)))
        self._drop(list(islice(table, max(0, len(table) - int(self._room)))))

    def expire(self, now_ms: float) -> None:
        gone = []
        for key, expiry in self._expiry.items():
            # In the order of their last use, and of one ttl: those behind it stay too.
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
