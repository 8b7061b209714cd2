"""The consumer's side of EC over memory that peers read: ask, read, say that it is done."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from connectors.ec.buffer_pool import BufferPool, Landing
from connectors.ec.load import REGION, ArenaLoad, Told
from connectors.ec.store import ECStore
from connectors.messages import ECDone, ECForget, ECGrant, ECHeld, ECLost, ECWant, FromProducer
from connectors.meter import Meter
from connectors.node import Node
from connectors.side_client import Address
from connectors.side_server import Sender
from connectors.transports.base import Transfer

_LINGER_S = 1.0  # how long `close` lets reads end before it tells their producers
_LOOK_S = 0.001


@dataclass(frozen=True)
class Sources:
    """Where entries come from: the producers that can be found, and the `own` store if there is
    one, which is asked at the address that others know it by, but without the side channel."""

    producers: Callable[[], Sequence[Address]]
    own: tuple[Address, ECStore] | None = None


class ECReader:
    """All loads of this engine. `landing` is None where the transport maps a peer's memory; `pool`
    is part of the region where it does not."""

    def __init__(
        self,
        node: Node,
        landing: Landing | None,
        pool: BufferPool,
        sources: Sources,
        load_timeout_s: float,
        meter: Meter,
    ) -> None:
        self.node = node
        self.landing = landing
        self.pool = pool
        self.load_timeout_s = load_timeout_s
        self.meter = meter
        self._sources = sources
        self._queries = itertools.count(secrets.randbits(62))
        self._loads: dict[int, ArenaLoad] = {}
        self._settling: list[tuple[Transfer, Callable[[], None]]] = []
        for kind in (ECGrant, ECLost, ECHeld):
            node.client.on(kind, self._answered)

    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ArenaLoad:
        """`params` may name the producer (`peer_host`, `peer_port`)."""
        query = next(self._queries)
        load = self._loads[query] = ArenaLoad(self, query, mm_hash, _peer(params))
        return load

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        """Tell the producer that was named, or all that have been asked for an embedding."""
        peer, own = _peer(params), self._sources.own
        addresses = [peer] if peer is not None else self.node.peers.known(REGION)
        if peer is None and own is not None:
            addresses.append(own[0])
        for address in addresses:
            self.send(address, ECForget(mm_hash, holder))

    def producers(self) -> Sequence[Address]:
        return self._sources.producers()

    def is_own(self, address: Address) -> bool:
        return self._sources.own is not None and self._sources.own[0] == address

    def send(self, address: Address, message: ECWant | ECDone | ECForget) -> None:
        own = self._sources.own
        if own is not None and own[0] == address:
            here = Sender(b"", lambda _, answer: self._answered(address, answer))
            own[1].serve(message, here)
        else:
            self.node.client.send(address, message)

    def ready(self, address: Address) -> str | None:
        """The instance at an address once it can be read; errors as of `Peers.ready`."""
        if self.is_own(address):
            return self.node.instance_id
        return self.node.peers.ready(address, REGION)

    def connection_number(self, address: Address) -> int | None:
        """As of `SideClient.connection_number`."""
        return 0 if self.is_own(address) else self.node.client.connection_number(address)

    def check(self, address: Address) -> None:
        """Give up what is known of a producer if there is no connection to it."""
        if self.node.client.broken(address):
            self.node.peers.lost(address)

    def view(self, address: Address, peer: str, offset: int, size: int) -> torch.Tensor:
        """uint8[size] of a producer's memory. `TransferError` if it cannot be mapped."""
        own = self._sources.own
        if own is not None and own[0] == address:
            return own[1].memory[offset : offset + size]
        return self.node.transport.view(peer, REGION, offset, size)

    def _answered(self, address: Address, message: FromProducer) -> None:
        match message:
            case ECGrant():
                self._granted(address, message)
            case ECLost(query) if query in self._loads:
                self._loads[query].lost.add(address)
            case ECHeld(query, held) if query in self._loads:
                self._loads[query].confirm(address, held=held)

    def _granted(self, address: Address, message: ECGrant) -> None:
        load = self._loads.get(message.query)
        # One that comes too late pins the entry over there all the same: it is given back.
        if load is None or not load.accept(Told(address, message)):
            name = "" if load is None else load.mm_hash
            self.send(address, ECDone(message.query, name, message.grant))

    def ended(self, query: int) -> None:
        self._loads.pop(query, None)

    def settle(self, transfer: Transfer, then: Callable[[], None]) -> None:
        """Do `then` once nothing is read or written by a transfer any more."""
        self._settling.append((transfer, then))

    def poll(self) -> None:
        for settled in [one for one in self._settling if one[0].settled]:
            self._settling.remove(settled)
            settled[1]()

    def close(self) -> None:
        """Let reads end, within a bound, before their producers are told: the transport may be
        closed next."""
        deadline = time.monotonic() + _LINGER_S
        while self._settling and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self.node.transport.poll()
            self.poll()
        for _, then in self._settling:
            then()
        self._settling.clear()

    @property
    def active(self) -> bool:
        return bool(self._loads or self._settling)

    def check_integrity(self) -> list[str]:
        problems = [
            f"EC entry {load.mm_hash[:16]} is still loading" for load in self._loads.values()
        ]
        if self.landing is not None and self.landing.space.used and not self.active:
            problems.append(
                f"{self.landing.space.used} bytes of the EC landing area belong to no load"
            )
        return problems + self.pool.check_integrity()


def _peer(params: dict[str, Any] | None) -> Address | None:
    named = params if isinstance(params, dict) else {}
    host, port = named.get("peer_host"), named.get("peer_port")
    return (host, port) if isinstance(host, str) and isinstance(port, int) else None
