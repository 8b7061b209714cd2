"""The EC connector of a worker that encodes for itself: a bounded dictionary."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from connectors.base import EC_TENSOR, ECConnector, ECLoad, Entry, Tensors
from connectors.meter import Meter, TransferStats
from protocol.errors import TransferTimeout


class LocalEC(ECConnector):
    """Entries live in this process, least recently used first out beyond `capacity` bytes."""

    def __init__(self, capacity: int, load_timeout_s: float) -> None:
        self.meter = Meter("ec", "local")
        self._capacity = capacity
        self._timeout = load_timeout_s
        self._entries: OrderedDict[str, Tensors] = OrderedDict()
        self._size = 0

    def put(self, mm_hash: str, entry: Entry) -> dict[str, Any] | None:
        self._discard(mm_hash)
        size = _nbytes(entry.tensors)
        self._entries[mm_hash] = entry.tensors
        self._size += size
        self.changed(mm_hash, len(entry.tensors[EC_TENSOR]), size)
        while self._size > self._capacity and len(self._entries) > 1:
            self._discard(next(iter(self._entries)))
        return {}

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        self.meter.asked(hit=mm_hash in self._entries)
        if mm_hash not in self._entries:
            return None
        self._entries.move_to_end(mm_hash)
        return {}

    def lookup(self, mm_hash: str) -> Tensors | None:
        return self._entries.get(mm_hash)

    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        return _LocalLoad(self, mm_hash, time.monotonic() + self._timeout)

    def _discard(self, mm_hash: str) -> None:
        tensors = self._entries.pop(mm_hash, None)
        if tensors is not None:
            self._size -= _nbytes(tensors)
            self.changed(mm_hash, 0, 0)

    def stats(self) -> TransferStats:
        return self.meter.snapshot(bytes_held=self._size)

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._discard(mm_hash)

    def close(self) -> None:
        self.clear()

    def check_integrity(self) -> list[str]:
        held = sum(_nbytes(tensors) for tensors in self._entries.values())
        return (
            [] if held == self._size else [f"EC store holds {held} bytes, books say {self._size}"]
        )


class _LocalLoad(ECLoad):
    def __init__(self, store: LocalEC, mm_hash: str, deadline: float) -> None:
        self._store = store
        self._mm_hash = mm_hash
        self._deadline = deadline

    def poll(self) -> Tensors | None:
        tensors = self._store.lookup(self._mm_hash)
        if tensors is None and time.monotonic() > self._deadline:
            raise TransferTimeout(f"no embedding for media item {self._mm_hash[:16]} in time")
        return tensors

    def cancel(self) -> None:
        pass


def _nbytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
