"""The consumer's side of KV: fetch what a producer offers as it grows, and prove it was held."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from connectors.base import KVArrival, KVLoad
from connectors.messages import Heartbeat, Held, KVEnd, KVFetched, KVGone, KVReady, KVWant, Release
from connectors.meter import Meter
from connectors.peers import Peers
from connectors.side_channel import Address, SideClient
from connectors.transports.base import Range, Transfer, Transport
from protocol.errors import TransferError, TransferTimeout
from protocol.refs import KVRef

REGION = "kv"


@dataclass(frozen=True)
class ConsumerOptions:
    """`heartbeat_s` between renewals of leases; `silence_s` without a word from a producer means
    that it is lost; `block_bytes` of the pools on both sides."""

    block_bytes: int
    heartbeat_s: float
    silence_s: float


class KVConsumer:
    """All fetches of this engine."""

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
        self._fetches: dict[str, Fetch] = {}
        self._queries = itertools.count()
        self._confirmations: dict[int, Fetch] = {}
        self._next_heartbeat = 0.0
        client.on(KVReady, lambda _, m: self._to_fetch(m.request_id, Fetch.on_ready, m))
        client.on(KVEnd, lambda _, m: self._to_fetch(m.request_id, Fetch.on_end, m))
        client.on(KVGone, lambda _, m: self._to_fetch(m.request_id, Fetch.on_gone, m))
        client.on(Held, self._held)

    def _to_fetch(self, request_id: str, handler: object, message: object) -> None:
        fetch = self._fetches.get(request_id)
        if fetch is not None:
            handler(fetch, message)  # type: ignore[operator]

    def _held(self, _: Address, message: Held) -> None:
        fetch = self._confirmations.pop(message.query, None)
        if fetch is not None:
            fetch.held = message.held

    def fetch(self, ref: KVRef, num_blocks: int) -> Fetch:
        """Ask for the first `num_blocks` blocks of a request's table."""
        fetch = Fetch(self, ref, num_blocks)
        self._fetches[ref.request_id] = fetch
        return fetch

    def confirm(self, fetch: Fetch) -> None:
        query = next(self._queries)
        self._confirmations[query] = fetch
        message = KVFetched(query, fetch.ref.request_id, fetch.generation)
        self.client.send(fetch.address, message)

    def forget(self, fetch: Fetch) -> None:
        if self._fetches.get(fetch.ref.request_id) is fetch:
            del self._fetches[fetch.ref.request_id]
        self._confirmations = {q: f for q, f in self._confirmations.items() if f is not fetch}

    def release(self, ref: KVRef) -> None:
        self.client.send((ref.host, ref.port), Release([ref.request_id]))

    def poll(self) -> None:
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + self.options.heartbeat_s
        wanted: dict[Address, list[str]] = {}
        for fetch in self._fetches.values():
            if fetch.asked:
                wanted.setdefault(fetch.address, []).append(fetch.ref.request_id)
        for address, request_ids in wanted.items():
            self.client.send(address, Heartbeat(request_ids))

    @property
    def active(self) -> list[str]:
        return list(self._fetches)


class Fetch(KVLoad):
    """One request's KV on its way: handshake, blocks as they are told, copies once there is a place
    for them, confirmation."""

    def __init__(self, consumer: KVConsumer, ref: KVRef, num_blocks: int) -> None:
        self.ref = ref
        self.address: Address = (ref.host, ref.port)
        self.generation = 0
        self.held: bool | None = None
        self._consumer = consumer
        self._num_blocks = num_blocks
        self._since = time.monotonic()
        self._peer: str | None = None
        self._ready: list[int] = []
        self._place: Sequence[int] | None = None
        self._first = 0
        self._read = 0
        self._begun = 0.0
        self._copied_at = 0.0
        self._copy_s = 0.0
        self._transfers: list[Transfer] = []
        self._stale: list[Transfer] = []
        self._end: KVEnd | None = None
        self._life: int | None = None
        self._confirmed: float | None = None
        self._error: TransferError | None = None

    def on_ready(self, message: KVReady) -> None:
        """Blocks are complete on the other side, or it has begun anew."""
        if message.generation != self.generation and message.first == 0:
            self.generation = message.generation
            self._ready = []
            self._drop_reads()
        fits = len(self._ready) + len(message.blocks) <= self._num_blocks
        if message.generation != self.generation or message.first != len(self._ready) or not fits:
            self._error = TransferError(
                f"request {self.ref.request_id}: blocks {message.first}+{len(message.blocks)} "
                f"told, {len(self._ready)} of {self._num_blocks} known"
            )
            return
        self._ready += message.blocks

    def _drop_reads(self) -> None:
        """Forget what has been read; it is read again once nothing of it is under way."""
        for transfer in self._transfers:
            transfer.cancel()
        self._stale += self._transfers
        self._transfers = []
        self._read = self._first

    @property
    def asked(self) -> bool:
        """Whether the producer has been asked for this request's KV."""
        return self._peer is not None

    @property
    def fed(self) -> bool:
        return bool(self._ready) or self._end is not None

    def place(self, first: int, blocks: Sequence[int]) -> None:
        self._place, self._first, self._read = blocks, first, first
        self._begun = time.monotonic()

    def unplace(self) -> None:
        if self._confirmed is not None:
            # The producer has let go of its copy.
            self._error = TransferError(f"request {self.ref.request_id}: its place was taken")
        self._drop_reads()
        self._place = None

    def on_end(self, message: KVEnd) -> None:
        self._end = message
        self.generation = self.generation or message.generation

    def on_gone(self, message: KVGone) -> None:
        """What has been confirmed cannot go: a heartbeat that crossed the confirmation asks for
        what has rightly ended."""
        if self.held is None:
            self._error = TransferError(f"request {self.ref.request_id}: {message.reason}")

    def poll(self) -> KVArrival | None:
        self._check_peer()
        if self._peer is None:
            self._connect()
        if self._error is None and self._place is not None:
            self._advance(self._place)
        if self._error is not None:
            raise self._error
        if self._end is None or self._place is None or self._transfers or self._stale:
            return None
        if self._confirmed is None:
            self._confirm()
        if self.held is None:
            return None
        if not self.held:
            raise TransferError(f"request {self.ref.request_id}: the lease lapsed while copying")
        self._consumer.forget(self)
        size = (self._read - self._first) * self._consumer.options.block_bytes
        self._consumer.meter.moved(size, time.monotonic() - self._begun, self._copy_s)
        return KVArrival(self._end.num_tokens, self._end.rope_delta, self._end.outputs)

    def _confirm(self) -> None:
        """Everything that was told is here; ask whether it was held all the time."""
        if len(self._ready) != self._num_blocks:
            raise TransferError(
                f"request {self.ref.request_id}: told of {len(self._ready)} blocks, not of "
                f"{self._num_blocks}"
            )
        self._confirmed = time.monotonic()
        self._consumer.confirm(self)

    def _advance(self, place: Sequence[int]) -> None:
        """Copy what is complete and not under way yet."""
        self._stale = [transfer for transfer in self._stale if not transfer.settled]
        copying = bool(self._transfers)
        self._transfers = [transfer for transfer in self._transfers if not transfer.poll()]
        self._count_copying(copying)
        if self._stale or self._read >= len(self._ready) or self._peer is None:
            return
        sources = self._ready[self._read :]
        targets = place[self._read - self._first :][: len(sources)]
        self._read = len(self._ready)
        ranges = _merged(sources, targets, self._consumer.options.block_bytes)
        transfer = self._consumer.transport.read(self._peer, REGION, ranges)
        if not transfer.poll():
            self._transfers.append(transfer)
        self._count_copying(True)

    def _count_copying(self, copying: bool) -> None:
        """Add the time since the last call, if bytes were moving in it."""
        now = time.monotonic()
        if copying:
            self._copy_s += now - self._copied_at
        self._copied_at = now

    def _connect(self) -> None:
        peer = self._consumer.peers.ready(self.address, REGION)
        if peer is None:
            return
        if peer != self.ref.instance_id:
            raise TransferError(
                f"request {self.ref.request_id}: instance {self.ref.instance_id[:64]} is not at "
                f"{self.address[0]}:{self.address[1]}, {peer} is"
            )
        self._peer, self._life = peer, self._consumer.client.life(self.address)
        self._consumer.client.send(self.address, KVWant(self.ref.request_id, self.ref.growing))

    def _check_peer(self) -> None:
        """Notice a producer that is gone, was so for a moment, or has said nothing for too long
        since it was asked."""
        client, now = self._consumer.client, time.monotonic()
        silent_s = min(client.silent_s(self.address), now - self._since)
        if self._confirmed is not None and self.held is None:
            silent_s = max(silent_s, now - self._confirmed)
        if client.broken(self.address):
            self._consumer.peers.lost(self.address)
            self._error = self._error or TransferError("the producer is gone")
        elif self._peer is not None and client.life(self.address) != self._life:
            self._error = self._error or TransferError("the connection to the producer broke")
        elif silent_s > self._consumer.options.silence_s:
            self._error = self._error or TransferTimeout("the producer is silent")

    def cancel(self) -> None:
        """Stop reading; the producer is told once nothing is in flight any more."""
        self._consumer.forget(self)
        self._drop_reads()
        self._error = self._error or TransferError("cancelled")
        self._consumer.release(self.ref)

    @property
    def settled(self) -> bool:
        return all(transfer.settled for transfer in (*self._transfers, *self._stale))


def _merged(sources: Sequence[int], targets: Sequence[int], size: int) -> list[Range]:
    """Byte ranges of blocks, runs that are contiguous on both sides as one."""
    ranges: list[Range] = []
    for source, target in zip(sources, targets, strict=True):
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.remote + last.size == source * size
            and last.local + last.size == target * size
        ):
            ranges[-1] = Range(last.remote, last.local, last.size + size)
        else:
            ranges.append(Range(source * size, target * size, size))
    return ranges
