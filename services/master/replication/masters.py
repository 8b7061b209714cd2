"""Other masters, and what they have placed: counted here until it ends or they fall silent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from protocol.errors import InvalidRequest
from protocol.registry import Finished
from services.master.master import Master
from services.master.placement.ledger import Ledger
from services.master.replication.messages import Ended, Placed
from services.master.replication.placement_sync import restore

_MAX_PEERS = 64
_SILENT_S = 3.0
_HELLOS = 3


class ByHand(Protocol):
    """Workers that cannot register, of which every master has the whole list."""

    def bodies(self) -> dict[str, bytes]: ...

    def learn(self, body: bytes, *, fresh: bool) -> None: ...

    def forget(self, name: str) -> None: ...


@dataclass
class Peer:
    """When a master was last heard of (s), and the requests it has placed."""

    heard: float
    ledger: Ledger = field(default_factory=Ledger)


@dataclass
class Peers:
    """By name. Times are seconds of the caller's monotonic clock."""

    master: Master
    _peers: dict[str, Peer] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """A master that says nothing for so long is gone: well before its workers' leases lapse."""
        return min(_SILENT_S, self.master.config.lease / 3)

    @property
    def hello_s(self) -> float:
        """Every master says something so often."""
        return self.silent_s / _HELLOS

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, name: str) -> bool:
        return name in self._peers

    @property
    def in_flight(self) -> int:
        """Requests that others have placed."""
        return sum(len(peer.ledger) for peer in self._peers.values())

    def greet(self, sender: str, now: float) -> None:
        """A master is there."""
        if sender in self._peers:
            self._peers[sender].heard = now
        elif len(self._peers) < _MAX_PEERS:
            self._peers[sender] = Peer(now)

    def prolong(self, by_s: float) -> None:
        """Nobody could be heard for so long."""
        for peer in self._peers.values():
            peer.heard += by_s

    def placed(self, sender: str, placed: Placed, now: float) -> None:
        """`InvalidRequest` for what cannot be; nothing is counted then."""
        peer, registry = self._peers.get(sender), self.master.registry
        fleet = registry.fleets.get(placed.model)
        if peer is None or fleet is None:
            return
        if len(peer.ledger) >= self.master.config.max_in_flight:
            raise InvalidRequest("a master places more than there may be", code="too_many_placed")
        held = restore(placed, fleet, registry.instances, now * 1e3)
        peer.ledger.hold(placed.request_id, held, now * 1e3)

    def ended(self, sender: str, ended: Ended, now: float) -> None:
        peer, now_ms = self._peers.get(sender), now * 1e3
        if peer is None:
            return
        report = Finished(ended.request_id, ended.stage, ended.mm_hashes, aborted=not ended.ok)
        if not ended.stray:
            peer.ledger.finish(report, now_ms)
        elif self.master.ledger.finish(report, now_ms) is None:
            self.finish(report, now_ms)

    def finish(self, report: Finished, now_ms: float) -> list[str]:
        """Whoever has placed it: who has done their part in it."""
        for peer in self._peers.values():
            workers = peer.ledger.finish(report, now_ms)
            if workers is not None:
                return workers
        return []

    def expire(self, now: float) -> None:
        """Placements lapse in time, and all of a master that is not heard any more."""
        for name, peer in list(self._peers.items()):
            peer.ledger.expire(now * 1e3)
            if now - peer.heard > self.silent_s:
                peer.ledger.clear(now * 1e3)
                del self._peers[name]
