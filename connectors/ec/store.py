"""The producer's side of EC over memory that peers read: entries, who holds them, who waits."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any

import torch

from connectors.base import EC_TENSOR, Changed, no_listener
from connectors.base import Entry as NewEntry
from connectors.ec.grants import Grants, StoredEntry
from connectors.ec.holders import Holders
from connectors.ec.range_allocator import RangeAllocator, aligned
from connectors.ec.tensors import copies, fill
from connectors.ec.wait_queue import WaitQueue, Want
from connectors.messages import ECDone, ECForget, ECHeld, ECTensor, ECWant
from connectors.side_server import Sender, SideServer
from protocol.errors import TransferError

_POLL_S = 0.05  # leases are looked through this often


class ECStore:
    """Entries in `memory`, least recently used first out, never while they are read or kept for a
    request."""

    def __init__(
        self,
        server: SideServer,
        memory: torch.Tensor,
        commit: Callable[[int, int], None],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        changed: Changed = no_listener,
    ) -> None:
        """`changed` as of `ECConnector`."""
        self.space = RangeAllocator(memory.numel())
        self._changed = changed
        self.grants = Grants(lease_s, lambda: self._clock())
        self.evictions = 0
        self.memory = memory
        self._commit = commit
        self._clock = clock
        self._entries: OrderedDict[str, StoredEntry] = OrderedDict()
        self._leaving: list[StoredEntry] = []
        self._holders = Holders(lease_s, lambda: self._clock())
        self._waiting = WaitQueue(lambda: self._clock())
        self._next_poll = 0.0
        self._handlers: dict[type, Callable[[Any, Sender], None]] = {
            ECWant: self._wanted,
            ECDone: self._done,
            ECForget: self._forget,
        }
        for kind, handler in self._handlers.items():
            server.on(kind, handler)

    def serve(self, message: ECWant | ECDone | ECForget, consumer: Sender) -> None:
        """As if a peer had said it."""
        self._handlers[type(message)](message, consumer)

    @property
    def lapsed(self) -> int:
        """Requests that never said they were done with an entry."""
        return self._holders.lapsed

    def offer(self, mm_hash: str, entry: NewEntry) -> bool:
        """Store an entry, and tell those who wait for it. False while the pinned leave no room.

        `TransferError` if it can never fit.
        """
        return self._put(mm_hash, entry, None)

    def swap(self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry]) -> bool:
        """`offer` that may also take the place of entries that are not being read; copies of
        those that requests still need go into `left`, even if what is read leaves no room after
        all."""
        return self._put(mm_hash, entry, left)

    def _put(self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry] | None) -> bool:
        if mm_hash not in self._entries:
            size = sum(aligned(tensor.nbytes) for tensor in entry.tensors.values())
            if size > self.space.capacity:
                raise TransferError(
                    f"media item {mm_hash[:16]} has {size} bytes of embeddings, the EC store "
                    f"{self.space.capacity}"
                )
            offset = self._make_room(size)
            if offset is None and left is not None:
                offset = self._push_out(size, left)
            if offset is None:
                return False
            # Memory may be sparse: the pages are taken here, and there may be none left.
            try:
                self._commit(offset, size)
            except TransferError:
                self.space.give(offset)
                raise
            self._entries[mm_hash] = StoredEntry(offset, fill(self.memory, offset, entry.tensors))
            self._changed(mm_hash, len(entry.tensors[EC_TENSOR]), size)
        for want in self._waiting.take(mm_hash):
            self._grant(mm_hash, want)
        for holder in entry.holders:
            self.keep(mm_hash, holder, entry.deadlines.get(holder))
        return True

    def _pinned(self, mm_hash: str) -> bool:
        # To drop what is read gains nothing: its memory is free only once its readers are done.
        return self._holders.holds(mm_hash) or bool(self._entries[mm_hash].readers)

    def _make_room(self, size: int) -> int | None:
        offset = self.space.take(size)
        for mm_hash in [name for name in self._entries if not self._pinned(name)]:
            if offset is not None:
                break
            self._drop(mm_hash)
            self.evictions += 1
            offset = self.space.take(size)
        return offset

    def _push_out(self, size: int, left: dict[str, NewEntry]) -> int | None:
        """Make room with entries that requests still need, least recently used first."""
        offset = None
        for mm_hash in [name for name, entry in self._entries.items() if not entry.readers]:
            entry = self._entries[mm_hash]
            tensors = copies(self.memory[entry.offset :], entry.tensors)
            # Before `_drop`, which forgets them. They go with the entry so that leases run on: if
            # these began anew, a request that never comes would pin it for ever.
            holders = self._holders.drop(mm_hash)
            left[mm_hash] = NewEntry(tensors, tuple(holders), holders)
            self._drop(mm_hash)
            offset = self.space.take(size)
            if offset is not None:
                break
        return offset

    def wanted(self, mm_hash: str) -> bool:
        return mm_hash in self._waiting

    def keep(self, mm_hash: str, holder: str, until: float | None = None) -> list[ECTensor] | None:
        """A request will need an entry, which is pinned until it says that it is done, or a lease
        has passed (`until`, if that has begun). Its tensors, None if it is not held."""
        entry = self._entries.get(mm_hash)
        if entry is None:
            return None
        self._entries.move_to_end(mm_hash)
        self._holders.keep(mm_hash, holder, until)
        return entry.tensors

    def _forget(self, message: ECForget, _: Sender) -> None:
        self._holders.done(message.mm_hash, message.holder)

    def tensors(self, mm_hash: str) -> list[ECTensor] | None:
        entry = self._entries.get(mm_hash)
        return None if entry is None else entry.tensors

    def _wanted(self, message: ECWant, consumer: Sender) -> None:
        want = self._waiting.made(message, consumer)
        if message.mm_hash in self._entries:
            self._grant(message.mm_hash, want)
        else:
            self._waiting.add(message.mm_hash, want)

    def _grant(self, mm_hash: str, want: Want) -> None:
        entry = self._entries[mm_hash]
        self._entries.move_to_end(mm_hash)
        self.grants.add(entry, want)

    def _done(self, message: ECDone, consumer: Sender) -> None:
        if message.grant:
            consumer(ECHeld(message.query, self.grants.end(message.grant)))
        else:
            self._waiting.forget(message.mm_hash, message.query, consumer)
            self.grants.withdraw(message.query, consumer)
        self._sweep_leaving()

    def _sweep_leaving(self) -> None:
        for entry in [entry for entry in self._leaving if not entry.readers]:
            self._leaving.remove(entry)
            self.space.give(entry.offset)

    def _drop(self, mm_hash: str) -> None:
        """Forget an entry; its memory is free once no consumer reads it."""
        entry = self._entries.pop(mm_hash)
        self._holders.drop(mm_hash)
        self._changed(mm_hash, 0, 0)
        self._leaving.append(entry)
        self._sweep_leaving()

    def poll(self, pending: Container[str] = ()) -> None:
        """End, and count, the leases that have lapsed; `pending` as of `ECConnector.poll`."""
        now = self._clock()
        if now < self._next_poll:
            return
        self._next_poll = now + _POLL_S
        self.grants.expire()
        self._sweep_leaving()
        self._holders.expire()
        self._waiting.poll(pending)

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._drop(mm_hash)

    @property
    def active(self) -> bool:
        """Whether a peer reads, or waits for, an entry."""
        return bool(self.grants or self._waiting)

    @property
    def awaited(self) -> int:
        """Entries that are kept for requests, or being read."""
        return sum(map(self._pinned, self._entries)) + len(self._leaving)

    @property
    def size(self) -> int:
        """Bytes in use, those of dropped entries that are still read included."""
        return self.space.used

    def check_integrity(self) -> list[str]:
        problems = self.space.check_integrity()
        held = sum(
            aligned(tensor.nbytes)
            for entry in (*self._entries.values(), *self._leaving)
            for tensor in entry.tensors
        )
        if held != self.space.used:
            problems.append(f"EC entries have {held} bytes in all, {self.space.used} are allocated")
        readers = sum(entry.readers for entry in (*self._entries.values(), *self._leaving))
        return problems + self.grants.check_integrity(readers)
