"""Embeddings counted in bytes: what an encoder keeps, and what a prefill worker has loaded."""

from __future__ import annotations

from collections import OrderedDict


class EmbeddingStore:
    """mm_hash → rows, least recently used out first beyond `capacity` bytes.

    `changes` collects (mm_hash, rows; 0 when it leaves), in order, until the caller clears it.
    """

    def __init__(self, capacity: int, row_bytes: int) -> None:
        self.capacity = capacity
        self.row_bytes = row_bytes
        self.changes: list[tuple[str, int]] = []
        self._rows: OrderedDict[str, int] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._size

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, mm_hash: str) -> bool:
        return mm_hash in self._rows

    def names(self) -> list[str]:
        return list(self._rows)

    def find(self, mm_hash: str) -> int | None:
        """Rows of an entry, which becomes the last to leave; None if it is not here."""
        rows = self._rows.get(mm_hash)
        if rows is not None:
            self._rows.move_to_end(mm_hash)
        return rows

    def put(self, mm_hash: str, rows: int) -> bool:
        """Keep an entry; False if it is larger than the whole store."""
        if rows * self.row_bytes > self.capacity:
            return False
        if mm_hash in self._rows:
            self._size -= self._rows.pop(mm_hash) * self.row_bytes
        else:
            self.changes.append((mm_hash, rows))
        self._rows[mm_hash] = rows
        self._size += rows * self.row_bytes
        while self._size > self.capacity:
            name, gone = self._rows.popitem(last=False)
            self._size -= gone * self.row_bytes
            self.changes.append((name, 0))
        return True

    def clear(self) -> None:
        self._rows.clear()
        self._size = 0
