"""The consumer's side of EC over memory that peers read: ask, read, say that it is done."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from connectors.base import ECLoad, Tensors
from connectors.ec.keep import Keep, Landing
from connectors.ec.tensors import check, copies, span
from connectors.messages import ECDone, ECForget, ECGrant, ECHeld, ECLost, ECTensor, ECWant
from connectors.meter import Meter
from connectors.node import Node
from connectors.side_channel import Address
from connectors.transports.base import Range, Transfer
from protocol.errors import EmbeddingLost, TransferError, TransferTimeout

REGION = "ec"
_LOOK_S = 0.25  # how often producers are looked for while an entry has not been found


@dataclass(frozen=True)
class _Told:
    """Where an entry lies."""

    address: Address
    grant: ECGrant


class ECReader:
    """All loads of this engine. `landing` is None where the transport maps a peer's memory; `keep`
    is part of the region where it does not."""

    def __init__(
        self,
        node: Node,
        landing: Landing | None,
        keep: Keep,
        producers: Callable[[], Sequence[Address]],
        load_timeout_s: float,
        meter: Meter,
    ) -> None:
        self.node = node
        self.landing = landing
        self.keep = keep
        self.producers = producers
        self.load_timeout_s = load_timeout_s
        self.meter = meter
        self._queries = itertools.count(secrets.randbits(62))
        self._loads: dict[int, ArenaLoad] = {}
        self._settling: list[tuple[Transfer, Landing | Keep, int]] = []
        node.client.on(ECGrant, self._granted)
        node.client.on(ECLost, self._lost)
        node.client.on(ECHeld, self._held)

    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ArenaLoad:
        """`params` may name the producer (`peer_host`, `peer_port`)."""
        query = next(self._queries)
        load = self._loads[query] = ArenaLoad(self, query, mm_hash, _peer(params))
        return load

    def forget(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        """Tell the producer that was named, or all that have been asked for an embedding."""
        peer = _peer(params)
        for address in [peer] if peer is not None else self.node.peers.known(REGION):
            self.node.client.send(address, ECForget(mm_hash, holder))

    def _granted(self, address: Address, message: ECGrant) -> None:
        load = self._loads.get(message.query)
        if load is None or not load.accept(_Told(address, message)):
            done = ECDone(message.query, "" if load is None else load.mm_hash, message.grant)
            self.node.client.send(address, done)

    def _lost(self, address: Address, message: ECLost) -> None:
        load = self._loads.get(message.query)
        if load is not None:
            load.lost.add(address)

    def _held(self, _: Address, message: ECHeld) -> None:
        load = self._loads.get(message.query)
        if load is not None:
            load.held = message.held

    def ended(self, query: int) -> None:
        self._loads.pop(query, None)

    def settle(self, transfer: Transfer, room: Landing | Keep, offset: int) -> None:
        """Give a range back once nothing is written to it any more."""
        self._settling.append((transfer, room, offset))

    def poll(self) -> None:
        for settled in [one for one in self._settling if one[0].settled]:
            self._settling.remove(settled)
            _, room, offset = settled
            room.give(offset)

    @property
    def active(self) -> bool:
        return bool(self._loads or self._settling)

    def check_integrity(self) -> list[str]:
        problems = [
            f"EC entry {load.mm_hash[:16]} is still loaded" for load in self._loads.values()
        ]
        if self.landing is not None and self.landing.space.used and not self.active:
            problems.append(f"{self.landing.space.used} bytes of the EC landing are lost")
        return problems


@dataclass(eq=False)
class ArenaLoad(ECLoad):
    """One entry on its way: found, granted, read, confirmed."""

    reader: ECReader
    query: int
    mm_hash: str
    peer: Address | None
    held: bool | None = None
    lost: set[Address] = field(default_factory=set)
    _asked: dict[Address, int | None] = field(default_factory=dict)
    _told: _Told | None = None
    _transfer: Transfer | None = None
    _room: Landing | Keep | None = None
    _offset: int = 0
    _tensors: Tensors | None = None
    _done: bool = False

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.reader.load_timeout_s
        self._next_look = 0.0
        self._begun = 0.0

    def accept(self, told: _Told) -> bool:
        """False if the entry has been found elsewhere already."""
        if self._done or self._told is not None:
            return False
        self._told = told
        return True

    def poll(self) -> Tensors | None:
        if time.monotonic() > self._deadline:
            raise TransferTimeout(f"no embedding for media item {self.mm_hash[:16]} in time")
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
            raise TransferError(f"EC entry {self.mm_hash[:16]}: the lease lapsed while reading")
        start, end = span(self._told.grant.tensors)
        self.reader.meter.moved(end - start, time.monotonic() - self._begun)
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
            self._next_look = now + (_LOOK_S if self._asked else 0.0)
            for address in self.reader.producers():
                try:
                    self._ask_one(address)
                except TransferError:
                    self._asked.pop(address, None)

    def _ask_one(self, address: Address) -> None:
        if address in self._asked:
            return self._watch(address)
        node = self.reader.node
        if node.peers.ready(address, REGION) is not None:
            self._asked[address] = node.client.life(address)
            self.lost.discard(address)
            wait_s = max(0.0, self._deadline - time.monotonic())
            node.client.send(address, ECWant(self.query, self.mm_hash, wait_s))
        return None

    def _watch(self, address: Address) -> None:
        """Raise if a producer is gone, or was for a moment: it knows of no grant any more."""
        node = self.reader.node
        if node.client.life(address) != self._asked.get(address):
            if node.client.broken(address):
                node.peers.lost(address)
            raise TransferError(f"EC entry {self.mm_hash[:16]}: the encoder is gone")

    def _read(self, told: _Told) -> bool:
        """Advance the copy; True once the tensors are here and the producer is asked whether they
        were held all the time."""
        if self._transfer is None and not self._start(told):
            return False
        if self._transfer is not None and not self._transfer.poll():
            return False
        self._send_done(told)
        if self._transfer is not None:
            self._land(told.grant.tensors)
        return True

    def _start(self, told: _Told) -> bool:
        """Begin to read. With memory that can be mapped it is over at once."""
        check(self.mm_hash, told.grant.tensors)
        node = self.reader.node
        peer = node.peers.ready(told.address, REGION)
        if peer is None:
            return False
        start, end = span(told.grant.tensors)
        self._begun = time.monotonic()
        if self.reader.landing is None:
            memory = node.transport.view(peer, REGION, start, end - start)
            self._copy(memory, told.grant.tensors)
            return True
        if not self._take(end - start, self.reader.landing):
            return False
        self._transfer = node.transport.read(
            peer, REGION, [Range(start, self._offset, end - start)]
        )
        return True

    def _take(self, size: int, landing: Landing) -> bool:
        """Room in the region, best where the entry can stay; False if there is none now."""
        if size > landing.space.capacity:
            raise TransferError(f"EC entry {self.mm_hash[:16]}: {size} bytes are too many")
        for room in (self.reader.keep, landing):
            offset = room.take(size)
            if offset is not None:
                self._room, self._offset = room, offset
                return True
        return False

    def _copy(self, memory: torch.Tensor, tensors: Sequence[ECTensor]) -> None:
        """Take the tensors out of memory that is not ours, or not for long."""
        keep = self.reader.keep
        offset = keep.take(memory.numel())
        if offset is None:
            self._tensors = copies(memory, tensors)
            return
        keep.fill(offset, memory)
        self._tensors = keep.lend(offset, tensors)

    def _land(self, tensors: Sequence[ECTensor]) -> None:
        """The entry is here: it stays where it is, or is copied out of the landing."""
        if isinstance(self._room, Keep):
            self._room = None
            self._tensors = self.reader.keep.lend(self._offset, tensors)
            return
        assert self._room is not None
        start, end = span(tensors)
        landed = self._room.memory[self._offset : self._offset + end - start]
        self._tensors = copies(landed, tensors)
        self._free()

    def _send_done(self, told: _Told | None) -> None:
        done = ECDone(self.query, self.mm_hash, 0 if told is None else told.grant.grant)
        if told is not None:
            self.reader.node.client.send(told.address, done)
        for address in self._asked:
            if told is None or address != told.address:
                self.reader.node.client.send(address, ECDone(self.query, self.mm_hash, 0))
        self._asked = {} if told is None else {told.address: self._asked.get(told.address)}

    def _free(self) -> None:
        if self._room is None:
            return
        if self._transfer is not None:
            self.reader.settle(self._transfer, self._room, self._offset)
        else:
            self._room.give(self._offset)
        self._room = None

    def _finish(self) -> None:
        self._done = True
        self.reader.ended(self.query)

    def cancel(self) -> None:
        if self._done:
            return
        if self._transfer is not None:
            self._transfer.cancel()
        if self._tensors is None:
            self._send_done(self._told)
        self._free()
        self._finish()


def _peer(params: dict[str, Any] | None) -> Address | None:
    named = params if isinstance(params, dict) else {}
    host, port = named.get("peer_host"), named.get("peer_port")
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None
