"""The EC connector of a worker that encodes for itself: a bounded dictionary."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Container
from typing import Any

from connectors.base import EC_TENSOR, Changed, ECConnector, ECLoad, Entry, Tensors, no_listener
from connectors.ec.holders import Holders
from connectors.meter import Meter, TransferStats
from protocol.errors import TransferError, TransferTimeout


class LocalEC(ECConnector):
    """Entries live in this process, in `capacity` bytes: least recently used first out, never while
    they are kept for a request."""

    def __init__(
        self,
        capacity: int,
        load_timeout_s: float,
        lease_s: float,
        changed: Changed = no_listener,
    ) -> None:
        self._changed = changed
        self.meter = Meter("ec", "local")
        self.evictions = 0
        self._capacity = capacity
        self._timeout = load_timeout_s
        self._entries: OrderedDict[str, Tensors] = OrderedDict()
        self._holders = Holders(lease_s, time.monotonic)
        self._loads: Counter[str] = Counter()
        self._size = 0

    def offer(self, mm_hash: str, entry: Entry) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, None)

    def wanted(self, mm_hash: str) -> bool:
        return mm_hash in self._loads and mm_hash not in self._entries

    def swap(self, mm_hash: str, entry: Entry, left: dict[str, Entry]) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, left)

    def _put(
        self, mm_hash: str, entry: Entry, left: dict[str, Entry] | None
    ) -> dict[str, Any] | None:
        """`left` takes what is pushed out although a request needs it."""
        if mm_hash not in self._entries:
            size = _nbytes(entry.tensors)
            if size > self._capacity:
                raise TransferError(
                    f"media item {mm_hash[:16]} needs {size} bytes, more than the EC "
                    "store holds: raise ec_buffer_size"
                )
            if not self._make_room(size) and (left is None or not self._push_out(size, left)):
                return None
            self._entries[mm_hash] = _own(entry.tensors)
            self._size += size
            self._changed(mm_hash, len(entry.tensors[EC_TENSOR]), size)
        for holder in entry.holders:
            self._holders.keep(mm_hash, holder, entry.deadlines.get(holder))
        return {}

    def _fits(self, size: int) -> bool:
        return self._size + size <= self._capacity

    def _make_room(self, size: int) -> bool:
        for mm_hash in [name for name in self._entries if not self._holders.holds(name)]:
            if self._fits(size):
                break
            self.evictions += 1
            self._drop(mm_hash)
        return self._fits(size)

    def _push_out(self, size: int, left: dict[str, Entry]) -> bool:
        """Make room with entries that requests still need, least recently used first."""
        for mm_hash in list(self._entries):
            if self._fits(size):
                break
            holders = self._holders.drop(mm_hash)
            left[mm_hash] = Entry(self._entries[mm_hash], tuple(holders), holders)
            self._drop(mm_hash)
        return self._fits(size)

    def _drop(self, mm_hash: str) -> None:
        self._size -= _nbytes(self._entries.pop(mm_hash))
        self._holders.drop(mm_hash)
        self._changed(mm_hash, 0, 0)

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        self.meter.asked(hit=mm_hash in self._entries)
        if mm_hash not in self._entries:
            return None
        self._entries.move_to_end(mm_hash)
        self._holders.keep(mm_hash, holder)
        return {}

    def lookup(self, mm_hash: str) -> Tensors | None:
        return self._entries.get(mm_hash)

    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        self._loads[mm_hash] += 1
        return _LocalLoad(self, mm_hash, time.monotonic() + self._timeout)

    def ended(self, mm_hash: str) -> None:
        """A load has ended."""
        self._loads[mm_hash] -= 1
        if not self._loads[mm_hash]:
            del self._loads[mm_hash]

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        self._holders.done(mm_hash, holder)

    def poll(self, pending: Container[str] = ()) -> None:
        self._holders.expire()

    def stats(self) -> TransferStats:
        return self.meter.snapshot(
            leases_expired=self._holders.lapsed, bytes_held=self._size, evictions=self.evictions
        )

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._drop(mm_hash)

    def close(self) -> None:
        self.clear()

    def check_integrity(self) -> list[str]:
        held = sum(_nbytes(tensors) for tensors in self._entries.values())
        problems = [f"EC entry {name[:16]} is still loading" for name in self._loads]
        if held != self._size:
            problems.append(f"EC entries have {held} bytes in all, {self._size} are accounted for")
        return problems


class _LocalLoad(ECLoad):
    def __init__(self, store: LocalEC, mm_hash: str, deadline: float) -> None:
        self._store = store
        self._mm_hash = mm_hash
        self._deadline = deadline
        self._done = False

    def poll(self) -> Tensors | None:
        tensors = self._store.lookup(self._mm_hash)
        if tensors is not None:
            self.cancel()
        elif time.monotonic() > self._deadline:
            raise TransferTimeout(
                f"no encoder made the embedding of media item {self._mm_hash[:16]} in time"
            )
        return tensors

    def cancel(self) -> None:
        if not self._done:
            self._done = True
            self._store.ended(self._mm_hash)


def _own(tensors: Tensors) -> Tensors:
    """Without memory that is not counted: one picture of an encoder's run is a view that would keep
    the whole run."""
    return {
        name: tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
        for name, tensor in tensors.items()
    }


def _nbytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
