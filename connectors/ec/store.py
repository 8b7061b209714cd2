"""The producer's side of EC over memory that peers read: entries, who holds them, who waits."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from connectors.base import EC_TENSOR, Tensors, nobody_listens
from connectors.base import Entry as NewEntry
from connectors.ec.space import Space, aligned
from connectors.ec.tensors import copies
from connectors.leases import LeaseTable
from connectors.messages import ECDone, ECForget, ECGrant, ECHeld, ECLost, ECTensor, ECWant
from connectors.side_channel import Sender, SideServer
from protocol.errors import TransferError

_MAX_WANTS = 100_000
_UNNAMED = "?"
_MAX_WAIT_S = 3600.0
_LOST_S = 2.0  # how long a call that brings the item may come after a consumer that wants it
_POLL_S = 0.05  # leases are looked through this often


@dataclass
class _Entry:
    """`holders` are the requests that it is kept for, and until when; `readers` counts grants. With
    either it is pinned."""

    offset: int
    tensors: list[ECTensor]
    holders: dict[str, float] = field(default_factory=dict)
    readers: int = 0

    @property
    def pinned(self) -> bool:
        return bool(self.holders or self.readers)


@dataclass
class _Want:
    query: int
    consumer: Sender
    since: float
    deadline: float


class ECStore:
    """Entries in `memory`, least recently used first out, never while pinned.

    A request may be done with an entry before the encoder has heard that it will need it: that is
    remembered for a lease's time.
    """

    def __init__(
        self,
        server: SideServer,
        memory: torch.Tensor,
        commit: Callable[[int, int], None],
        pending: Callable[[str], bool],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[str, int, int], None] = nobody_listens,
    ) -> None:
        """`changed` as of `ECConnector`."""
        self.space = Space(memory.numel())
        self._changed = changed
        self.grants: LeaseTable[int] = LeaseTable(lease_s, clock)
        self.lapsed = 0
        self.evictions = 0
        self._memory = memory
        self._commit = commit
        self._pending = pending
        self._lease_s = lease_s
        self._clock = clock
        self._numbers = itertools.count(1)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._granted: dict[int, _Entry] = {}
        self._leaving: list[_Entry] = []
        self._wants: OrderedDict[str, list[_Want]] = OrderedDict()
        self._forgotten: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._next_poll = 0.0
        server.on(ECWant, self._wanted)
        server.on(ECDone, self._done)
        server.on(ECForget, self._forget)

    def put(self, mm_hash: str, entry: NewEntry) -> bool:
        """Store an entry, and tell those who wait for it. False while the pinned leave no room.

        `TransferError` if it can never fit.
        """
        return self._put(mm_hash, entry, None)

    def swap(self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry]) -> bool:
        """`put` that may also take the place of entries that nobody reads; copies of those that are
        kept for somebody go into `left`, even if what is read leaves no room after all."""
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
            try:
                self._commit(offset, size)
            except TransferError:
                self.space.give(offset)
                raise
            self._entries[mm_hash] = _Entry(offset, self._copy(offset, entry.tensors))
            self._changed(mm_hash, len(entry.tensors[EC_TENSOR]), size)
        self._serve_wants(mm_hash)
        for holder in entry.holders:
            self.keep(mm_hash, holder)
        return True

    def _make_room(self, size: int) -> int | None:
        offset = self.space.take(size)
        for mm_hash in [name for name, entry in self._entries.items() if not entry.pinned]:
            if offset is not None:
                break
            self._drop(mm_hash)
            self.evictions += 1
            offset = self.space.take(size)
        return offset

    def _push_out(self, size: int, left: dict[str, NewEntry]) -> int | None:
        """Make room with entries that are kept for somebody, least recently used first."""
        offset = None
        for mm_hash in [name for name, entry in self._entries.items() if not entry.readers]:
            entry = self._entries[mm_hash]
            tensors = copies(self._memory[entry.offset :], entry.tensors)
            left[mm_hash] = NewEntry(tensors, tuple(entry.holders))
            self._drop(mm_hash)
            offset = self.space.take(size)
            if offset is not None:
                break
        return offset

    def wanted(self, mm_hash: str) -> bool:
        return mm_hash in self._wants

    def _copy(self, offset: int, tensors: Tensors) -> list[ECTensor]:
        described = []
        for name, tensor in tensors.items():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            self._memory[offset : offset + flat.numel()] = flat
            dtype = str(tensor.dtype).removeprefix("torch.")
            described.append(ECTensor(name, tuple(tensor.shape), dtype, offset, flat.numel()))
            offset += aligned(flat.numel())
        return described

    def keep(self, mm_hash: str, holder: str) -> list[ECTensor] | None:
        """A request will need an entry, which is pinned until it says that it is done, or a lease
        has passed. Its tensors, None if it is not held."""
        entry = self._entries.get(mm_hash)
        if entry is None:
            return None
        self._entries.move_to_end(mm_hash)
        if self._forgotten.pop((mm_hash, holder), None) is None:
            name = holder or f"{_UNNAMED}{next(self._numbers)}"
            entry.holders[name] = self._clock() + self._lease_s
        return entry.tensors

    def _forget(self, message: ECForget, _: Sender) -> None:
        entry = self._entries.get(message.mm_hash)
        if entry is not None:
            unnamed = (name for name in entry.holders if name.startswith(_UNNAMED))
            name = message.holder if message.holder in entry.holders else next(unnamed, None)
            if name is not None:
                del entry.holders[name]
                return
        key = (message.mm_hash, message.holder)
        self._forgotten[key] = self._clock() + self._lease_s
        if len(self._forgotten) > _MAX_WANTS:
            self._forgotten.popitem(last=False)

    def tensors(self, mm_hash: str) -> list[ECTensor] | None:
        entry = self._entries.get(mm_hash)
        return None if entry is None else entry.tensors

    def _wanted(self, message: ECWant, consumer: Sender) -> None:
        now = self._clock()
        want = _Want(message.query, consumer, now, now + min(message.wait_s, _MAX_WAIT_S))
        if message.mm_hash in self._entries:
            return self._grant(message.mm_hash, want)
        if sum(map(len, self._wants.values())) >= _MAX_WANTS:
            self._wants.popitem(last=False)
        return self._wants.setdefault(message.mm_hash, []).append(want)

    def _serve_wants(self, mm_hash: str) -> None:
        for want in self._wants.pop(mm_hash, ()):
            if want.deadline > self._clock():
                self._grant(mm_hash, want)

    def _grant(self, mm_hash: str, want: _Want) -> None:
        entry = self._entries[mm_hash]
        self._entries.move_to_end(mm_hash)
        number = next(self._numbers)
        self.grants.grant(number)
        self._granted[number] = entry
        entry.readers += 1
        want.consumer(ECGrant(want.query, number, entry.tensors))

    def _done(self, message: ECDone, consumer: Sender) -> None:
        if message.grant:
            held = self.grants.release(message.grant)
            consumer(ECHeld(message.query, held))
            if held:
                self._end_grant(message.grant)
        else:
            self._forget_want(message)

    def _forget_want(self, message: ECDone) -> None:
        wants = self._wants.get(message.mm_hash, [])
        wants[:] = [want for want in wants if want.query != message.query]
        if not wants:
            self._wants.pop(message.mm_hash, None)

    def _end_grant(self, number: int) -> None:
        entry = self._granted.pop(number)
        entry.readers -= 1
        self._sweep_leaving()

    def _sweep_leaving(self) -> None:
        for entry in [entry for entry in self._leaving if not entry.readers]:
            self._leaving.remove(entry)
            self.space.give(entry.offset)

    def _drop(self, mm_hash: str) -> None:
        """Forget an entry; its memory is free once nobody reads it."""
        entry = self._entries.pop(mm_hash)
        self._changed(mm_hash, 0, 0)
        self._leaving.append(entry)
        self._sweep_leaving()

    def poll(self) -> None:
        """End, and count, the leases that have lapsed."""
        now = self._clock()
        if now < self._next_poll:
            return
        self._next_poll = now + _POLL_S
        for number in self.grants.expire():
            self._end_grant(number)
        for entry in self._entries.values():
            for name in [name for name, until in entry.holders.items() if until <= now]:
                del entry.holders[name]
                self.lapsed += 1
        while self._forgotten and next(iter(self._forgotten.values())) <= now:
            self._forgotten.popitem(last=False)
        self._poll_wants(now)

    def _poll_wants(self, now: float) -> None:
        """Forget those that wait no longer, and tell those that wait in vain."""
        for mm_hash, wants in list(self._wants.items()):
            lost = [w for w in wants if w.since + _LOST_S <= now and not self._pending(mm_hash)]
            for want in lost:
                want.consumer(ECLost(want.query))
            wants[:] = [want for want in wants if want.deadline > now and want not in lost]
            if not wants:
                del self._wants[mm_hash]

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._drop(mm_hash)

    @property
    def active(self) -> bool:
        """Whether a peer reads, or waits for, an entry."""
        return bool(self._granted or self._wants)

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
            problems.append(f"EC entries sum to {held} bytes, {self.space.used} are taken")
        readers = sum(entry.readers for entry in (*self._entries.values(), *self._leaving))
        if not readers == len(self._granted) == len(self.grants):
            problems.append(f"{readers} EC readers, {len(self.grants)} grants")
        return problems
