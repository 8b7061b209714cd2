"""The producer's side of EC over memory that peers read: entries, who holds them, who waits."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from connectors.base import Tensors
from connectors.ec.space import Space, aligned
from connectors.leases import LeaseTable
from connectors.messages import ECDone, ECGrant, ECHeld, ECTensor, ECWant
from connectors.side_channel import Sender, SideServer
from protocol.errors import TransferError

_MAX_WANTS = 100_000
_CREDIT_S = 2.0
_POLL_S = 0.05  # leases are looked through this often


@dataclass
class _Entry:
    """`told` are the deadlines of those that were told of the entry and have yet to come for it;
    `readers` counts grants. With either it is pinned."""

    offset: int
    tensors: list[ECTensor]
    told: deque[float] = field(default_factory=deque)
    readers: int = 0

    @property
    def pinned(self) -> bool:
        return bool(self.told or self.readers)


@dataclass
class _Want:
    query: int
    consumer: Sender
    deadline: float


class ECStore:
    """Entries in `memory`, least recently used first out, never while pinned.

    Somebody who says "done" without having been told of the entry came before its announcement: the
    next one, if it comes soon, pins nothing.
    """

    def __init__(
        self,
        server: SideServer,
        memory: torch.Tensor,
        commit: Callable[[int, int], None],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.space = Space(memory.numel())
        self.grants: LeaseTable[int] = LeaseTable(lease_s, clock)
        self.lapsed = 0
        self.evictions = 0
        self._memory = memory
        self._commit = commit
        self._lease_s = lease_s
        self._clock = clock
        self._numbers = itertools.count(1)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._granted: dict[int, _Entry] = {}
        self._leaving: list[_Entry] = []
        self._wants: OrderedDict[str, list[_Want]] = OrderedDict()
        self._credits: dict[str, list[float]] = {}
        self._next_poll = 0.0
        server.on(ECWant, self._wanted)
        server.on(ECDone, self._done)

    def put(self, mm_hash: str, tensors: Tensors) -> bool:
        """Store an entry, and tell those who wait for it. False while the pinned leave no room.

        `TransferError` if it can never fit.
        """
        if mm_hash not in self._entries:
            size = sum(aligned(tensor.nbytes) for tensor in tensors.values())
            if size > self.space.capacity:
                raise TransferError(
                    f"media item {mm_hash[:16]} has {size} bytes of embeddings, the EC store "
                    f"{self.space.capacity}"
                )
            offset = self._make_room(size)
            if offset is None:
                return False
            try:
                self._commit(offset, size)
            except TransferError:
                self.space.give(offset)
                raise
            self._entries[mm_hash] = _Entry(offset, self._copy(offset, tensors))
        self._serve_wants(mm_hash)
        self.tell(mm_hash)
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

    def _copy(self, offset: int, tensors: Tensors) -> list[ECTensor]:
        described = []
        for name, tensor in tensors.items():
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            self._memory[offset : offset + flat.numel()] = flat
            dtype = str(tensor.dtype).removeprefix("torch.")
            described.append(ECTensor(name, tuple(tensor.shape), dtype, offset, flat.numel()))
            offset += aligned(flat.numel())
        return described

    def tell(self, mm_hash: str) -> list[ECTensor] | None:
        """Somebody is being told of an entry, which is pinned until they have come, or a lease has
        passed. Its tensors, None if it is not held."""
        entry = self._entries.get(mm_hash)
        if entry is None:
            return None
        self._entries.move_to_end(mm_hash)
        if not self._use_credit(mm_hash):
            entry.told.append(self._clock() + self._lease_s)
        return entry.tensors

    def tensors(self, mm_hash: str) -> list[ECTensor] | None:
        entry = self._entries.get(mm_hash)
        return None if entry is None else entry.tensors

    def _use_credit(self, mm_hash: str) -> bool:
        credits = self._credits.pop(mm_hash, [])
        alive = [deadline for deadline in credits if deadline > self._clock()]
        if len(alive) > 1:
            self._credits[mm_hash] = alive[1:]
        return bool(alive)

    def _wanted(self, message: ECWant, consumer: Sender) -> None:
        want = _Want(message.query, consumer, self._clock() + min(message.wait_s, 3600.0))
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
        entry = self._entries.get(message.mm_hash)
        if entry is not None and entry.told:
            entry.told.popleft()
        elif len(self._credits) < _MAX_WANTS:
            credit = self._clock() + _CREDIT_S
            self._credits.setdefault(message.mm_hash, []).append(credit)

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
            while entry.told and entry.told[0] <= now:
                entry.told.popleft()
                self.lapsed += 1
        for mm_hash, wants in list(self._wants.items()):
            wants[:] = [want for want in wants if want.deadline > now]
            if not wants:
                del self._wants[mm_hash]
        self._credits = {
            name: alive
            for name, credits in self._credits.items()
            if (alive := [deadline for deadline in credits if deadline > now])
        }

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
