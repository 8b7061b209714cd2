"""What each event source of one worker holds, in the index as one worker's.

A worker may have a source for each of its ranks, each with a cache of its own: it holds what any of
them holds, and what one of them loses or forgets is gone only if no other has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from services.master.index.prefix_index import HolderIndex

K = TypeVar("K", bound=Hashable)


class SourceHoldings(Generic[K]):
    """The holdings of `slot`. Until a second source speaks of such keys, all of them are the first
    one's and the index alone knows them."""

    def __init__(self, index: HolderIndex[K], slot: int) -> None:
        self._index = index
        self._slot = slot
        self._only: int | None = None
        self._by_source: HolderIndex[K] | None = None

    def add(self, source: int, keys: Sequence[K]) -> None:
        if source != self._only:
            if self._only is None and self._by_source is None:
                self._only = source
            else:
                self._tell_apart().add(source, keys)
        self._index.add(self._slot, keys)

    def _tell_apart(self) -> HolderIndex[K]:
        if self._by_source is None:
            assert self._only is not None
            self._by_source = HolderIndex(self._index.max_entries, self._index.new_log)
            self._by_source.add(self._only, self._index.keys(self._slot))
            self._only = None
        return self._by_source

    def remove(self, source: int, keys: Sequence[K]) -> None:
        if source == self._only:
            self._index.remove(self._slot, keys)
        elif self._by_source is not None:
            self._by_source.remove(source, keys)
            self._drop_unheld(self._by_source, keys)

    def drop(self, source: int) -> None:
        """The source holds nothing."""
        if source == self._only:
            self._index.drop(self._slot)
        elif self._by_source is not None:
            # Read first: once it is dropped, nothing tells what it was the only one to hold.
            keys = self._by_source.keys(source)
            self._by_source.drop(source)
            self._drop_unheld(self._by_source, keys)

    def _drop_unheld(self, held: HolderIndex[K], keys: Sequence[K]) -> None:
        self._index.remove(self._slot, [key for key in keys if not held.holders(key)])
