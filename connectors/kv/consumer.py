"""The consumer's side of KV: all fetches of an engine, and what it says to their producers."""

from __future__ import annotations

import itertools
import time

from connectors.kv.fetch import ConsumerOptions, Fetch
from connectors.messages import Heartbeat, Held, KVEnd, KVFetched, KVGone, KVReady, Release
from connectors.meter import Meter
from connectors.peers import Peers
from connectors.side_client import Address, SideClient
from connectors.transports.base import Transport
from protocol.errors import TransferError
from protocol.refs import KVRef

_MAX_IDS = 200  # in one heartbeat: as long as ids may be, it stays below what a message may be
_LINGER_S = 1.0  # how long `close` lets reads end before it tells their producers
_LOOK_S = 0.001
OfferKey = tuple[Address, str]
"""Where the producer is, and the request: two producers may have the same one."""


class KVConsumer:
    """A fetch that is given up is kept, and its lease renewed, until nothing reads the producer's
    blocks any more."""

    def __init__(
        self,
        client: SideClient,
        peers: Peers,
        transport: Transport,
        options: ConsumerOptions,
        meter: Meter,
    ) -> None:
        self.client = client
        self.peers = peers
        self.transport = transport
        self.options = options
        self.meter = meter
        self._fetches: dict[OfferKey, Fetch] = {}
        self._leaving: dict[OfferKey, Fetch] = {}
        self._queries = itertools.count()
        self._confirmations: dict[int, Fetch] = {}
        self._next_heartbeat = 0.0
        client.on(KVReady, self._ready)
        client.on(KVEnd, self._end)
        client.on(KVGone, self._gone)
        client.on(Held, self._held)

    def _ready(self, address: Address, message: KVReady) -> None:
        fetch = self._fetches.get((address, message.request_id))
        if fetch is not None:
            fetch.on_ready(message)

    def _end(self, address: Address, message: KVEnd) -> None:
        fetch = self._fetches.get((address, message.request_id))
        if fetch is not None:
            fetch.on_end(message)

    def _gone(self, address: Address, message: KVGone) -> None:
        fetch = self._fetches.get((address, message.request_id))
        if fetch is not None:
            fetch.on_gone(message)

    def _held(self, address: Address, message: Held) -> None:
        fetch = self._confirmations.get(message.query)
        # The number alone proves nothing: any producer can name it.
        if fetch is not None and fetch.address == address:
            del self._confirmations[message.query]
            fetch.held = message.held

    def fetch(self, ref: KVRef, num_blocks: int) -> Fetch:
        """Ask for the first `num_blocks` blocks of a request's table. `TransferError` if they are
        being fetched, or were until a moment ago."""
        fetch = Fetch(self, ref, num_blocks)
        # One that leaves still owes a release, which would end the offer for this one, too.
        if _key(fetch) in self._fetches or _key(fetch) in self._leaving:
            raise TransferError(f"request {ref.request_id} is fetching this KV already")
        self._fetches[_key(fetch)] = fetch
        return fetch

    def confirm(self, fetch: Fetch) -> None:
        query = next(self._queries)
        self._confirmations[query] = fetch
        message = KVFetched(query, fetch.ref.request_id, fetch.generation)
        self.client.send(fetch.address, message)

    def forget(self, fetch: Fetch) -> None:
        """A fetch is over."""
        del self._fetches[_key(fetch)]
        self._confirmations = {q: f for q, f in self._confirmations.items() if f is not fetch}

    def leave(self, fetch: Fetch) -> None:
        """A fetch is given up: its producer is told as soon as nothing reads from there for it."""
        self.forget(fetch)
        self._leaving[_key(fetch)] = fetch
        self._release_settled()

    def _release_settled(self) -> None:
        for fetch in [fetch for fetch in self._leaving.values() if fetch.settled]:
            self._release(fetch)

    def _release(self, fetch: Fetch) -> None:
        del self._leaving[_key(fetch)]
        # Also if the offer was never asked for: its producer would hold the blocks for a lease.
        self.client.send(fetch.address, Release([fetch.ref.request_id]))

    def poll(self) -> None:
        """Release and renew what is due. Who has not answered a handshake yet is asked too: it may
        compute."""
        self._release_settled()
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + self.options.heartbeat_s
        wanted: dict[Address, list[str]] = {}
        # Those given up as well: while a read runs the producer must not reuse the blocks.
        for fetch in (*self._fetches.values(), *self._leaving.values()):
            names = wanted.setdefault(fetch.address, [])
            if fetch.asked:
                names.append(fetch.ref.request_id)
        for address, request_ids in wanted.items():
            # Also without any id: the answer says whether the producer lives, and computes.
            for at in range(0, len(request_ids) or 1, _MAX_IDS):
                self.client.send(address, Heartbeat(request_ids[at : at + _MAX_IDS]))

    @property
    def active(self) -> list[str]:
        """Requests that are fetched, or still read."""
        leaving = (fetch for fetch in self._leaving.values() if not fetch.settled)
        return [fetch.ref.request_id for fetch in (*self._fetches.values(), *leaving)]

    def close(self) -> None:
        """Give everything up and tell the producers, those of reads that do not end in time as
        well: the transport may be closed next."""
        for fetch in list(self._fetches.values()):
            fetch.cancel()
        deadline = time.monotonic() + _LINGER_S
        while self._leaving and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self.transport.poll()
            self._release_settled()
        for fetch in list(self._leaving.values()):
            self._release(fetch)


def _key(fetch: Fetch) -> OfferKey:
    return fetch.address, fetch.ref.request_id
