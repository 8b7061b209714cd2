"""One embedding on its way from a producer's memory: found, granted, read, confirmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from connectors.base import ECLoad, Tensors
from connectors.ec.buffer_pool import BufferPool, Landing
from connectors.ec.load_owner import LoadOwner
from connectors.ec.tensors import check, copies, span
from connectors.messages import ECDone, ECGrant, ECTensor, ECWant
from connectors.side_client import Address
from connectors.transports.base import Range, Transfer
from protocol.errors import EmbeddingLost, TransferError, TransferTimeout

REGION = "ec"
_LOOK_S = 0.25  # how often producers are looked for while an entry has not been found


@dataclass(frozen=True)
class Told:
    """Where an entry lies."""

    address: Address
    grant: ECGrant


@dataclass(eq=False)
class ArenaLoad(ECLoad):
    """One load; `reader` owns it."""

    reader: LoadOwner  # the consumer's side of the connector
    query: int  # number of the question, unique in this process
    mm_hash: str  # the entry's name
    peer: Address | None  # the producer that was named, None to ask all there are
    # whether the pin held until all was read, None until the producer has said so
    held: bool | None = None
    # producers that answered that they do not hold it
    lost: set[Address] = field(default_factory=set)
    # producers that were asked → number of the connection then
    _asked: dict[Address, int | None] = field(default_factory=dict)
    _told: Told | None = None  # where the entry lies, once a producer has granted it
    _transfer: Transfer | None = None  # the read in progress
    _room: Landing | BufferPool | None = None  # what the bytes are read into
    _offset: int = 0  # where in it
    _tensors: Tensors | None = None  # the entry, once it is here
    _done: bool = False  # it has ended, for better or worse

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.reader.load_timeout_s
        self._next_look = 0.0
        self._begun = 0.0
        self._copy_s = 0.0  # without the answer whether the pin held

    def accept(self, told: Told) -> bool:
        """False if the entry has been found elsewhere already."""
        if self._done or self._told is not None:
            return False
        self._told = told
        return True

    def confirm(self, address: Address, *, held: bool) -> None:
        """A producer has let go of a grant. One whose grant came too late says nothing of the entry
        that was read elsewhere."""
        if self._told is not None and self._told.address == address:
            self.held = held

    def poll(self) -> Tensors | None:
        if time.monotonic() > self._deadline:
            raise TransferTimeout(
                f"no encoder sent the embedding of media item {self.mm_hash[:16]} in time"
            )
        if self._told is None:
            self._ask()
            return None
        if self._tensors is None or self.held is None:
            self._watch(self._told.address)
        if self._tensors is None and not self._read(self._told):
            return None
        if self.held is None:
            return None
        if not self.held:
            raise TransferError(
                f"the lease of EC entry {self.mm_hash[:16]} expired while it was read"
            )
        start, end = span(self._told.grant.tensors)
        self.reader.meter.moved(end - start, time.monotonic() - self._begun, self._copy_s)
        self._finish()
        return self._tensors

    def _ask(self) -> None:
        """Ask the producer that was named, or all there are, each once."""
        if self._asked and self._asked.keys() <= self.lost:
            raise EmbeddingLost(f"no encoder holds media item {self.mm_hash[:16]}")
        now = time.monotonic()
        if self.peer is not None:
            self._ask_one(self.peer)
        elif now >= self._next_look:
            # While no producer has been asked, handshakes are under way, which end between two
            # polls.
            self._next_look = now + (_LOOK_S if self._asked else 0.0)
            for address in self.reader.producers():
                try:
                    self._ask_one(address)
                except TransferError:
                    # Gone, or of another model: those that are left are asked.
                    self._asked.pop(address, None)

    def _ask_one(self, address: Address) -> None:
        if address in self._asked:
            return self._watch(address)
        if self.reader.ready(address) is not None:
            # Noted before it is sent: our own store answers within `send`.
            self._asked[address] = self.reader.connection_number(address)
            self.lost.discard(address)
            wait_s = max(0.0, self._deadline - time.monotonic())
            self.reader.send(address, ECWant(self.query, self.mm_hash, wait_s))
        return None

    def _watch(self, address: Address) -> None:
        """Raise if a producer is gone, or was for a moment: it knows of no grant any more."""
        if self.reader.connection_number(address) != self._asked.get(address):
            self.reader.check(address)
            raise TransferError(f"the encoder that held EC entry {self.mm_hash[:16]} has ended")

    def _read(self, told: Told) -> bool:
        """Advance the copy; True once the tensors are here and the producer is asked whether they
        were held all the time."""
        if self._transfer is None and not self._start(told):
            return False
        if self._transfer is not None and not self._transfer.poll():
            return False
        self._copy_s = time.monotonic() - self._begun
        # First of all: the producer need not hold its pin while the bytes are copied once more.
        self._send_done(told)
        if self._transfer is not None:
            self._land(told.grant.tensors)
        return True

    def _start(self, told: Told) -> bool:
        """Begin to read. Memory that can be mapped is read at once."""
        check(self.mm_hash, told.grant.tensors)
        peer = self.reader.ready(told.address)
        if peer is None:
            return False
        start, end = span(told.grant.tensors)
        self._begun = time.monotonic()
        landing = self.reader.landing
        if landing is None or self.reader.is_own(told.address):
            memory = self.reader.view(told.address, peer, start, end - start)
            self._copy(memory, told.grant.tensors)
            return True
        if not self._take(end - start, landing):
            return False
        ranges = [Range(start, self._offset, end - start)]
        self._transfer = self.reader.node.transport.read(peer, REGION, ranges)
        return True

    def _take(self, size: int, landing: Landing) -> bool:
        """Room in the region, best where the entry can stay; False if there is none now."""
        if size > landing.space.capacity:
            raise TransferError(
                f"EC entry {self.mm_hash[:16]} needs {size} bytes: raise landing_size"
            )
        for room in (self.reader.pool, landing):
            offset = room.take(size)
            if offset is not None:
                self._room, self._offset = room, offset
                return True
        return False

    def _copy(self, memory: torch.Tensor, tensors: Sequence[ECTensor]) -> None:
        """Take the tensors out of memory that is not ours, or not for long."""
        pool = self.reader.pool
        offset = pool.take(memory.numel())
        if offset is None:
            self._tensors = copies(memory, tensors)
            return
        pool.fill(offset, memory)
        self._tensors = pool.lend(offset, tensors)

    def _land(self, tensors: Sequence[ECTensor]) -> None:
        """The entry is here: it stays where it is, or is copied out of the landing."""
        if isinstance(self._room, BufferPool):
            self._room = None
            self._tensors = self.reader.pool.lend(self._offset, tensors)
            return
        assert self._room is not None
        start, end = span(tensors)
        landed = self._room.region[self._offset : self._offset + end - start]
        self._tensors = copies(landed, tensors)
        self._free()

    def _send_done(self, told: Told | None) -> None:
        done = ECDone(self.query, self.mm_hash, 0 if told is None else told.grant.grant)
        if told is not None:
            self.reader.send(told.address, done)
        # The others may have granted it as well, which would pin it there for a whole lease.
        for address in self._asked:
            if told is None or address != told.address:
                self.reader.send(address, ECDone(self.query, self.mm_hash, 0))
        self._asked = {} if told is None else {told.address: self._asked.get(told.address)}

    def _free(self) -> None:
        if self._room is None:
            return
        self._once_settled(partial(self._room.give, self._offset))
        self._room = None

    def _once_settled(self, then: Callable[[], None]) -> None:
        """What the copy reads and writes is not let go of before it is over."""
        if self._transfer is None or self._transfer.settled:
            then()
        else:
            self.reader.settle(self._transfer, then)

    def _finish(self) -> None:
        self._done = True
        self.reader.ended(self.query)

    def cancel(self) -> None:
        if self._done:
            return
        if self._transfer is not None:
            self._transfer.cancel()
        # With the tensors here, producers have been told already, see `_read`.
        if self._tensors is None:
            self._once_settled(partial(self._send_done, self._told))
        self._free()
        self._finish()
