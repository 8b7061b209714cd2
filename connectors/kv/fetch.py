"""One request's KV on its way: blocks as they are told, copies, and proof that they were held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from connectors.kv.base import REGION, KVArrival, KVLoad
from connectors.kv.copies import Copies
from connectors.messages import KVEnd, KVGone, KVReady, KVWant
from connectors.meter import Meter
from connectors.peers import Peers
from connectors.side_client import Address, SideClient
from connectors.transports.base import Transport
from protocol.errors import TransferError, TransferTimeout
from protocol.refs import KVRef

_LONGEST_STEP_S = 600.0  # of a producer's engine; its own worker gives such a step up before


@dataclass(frozen=True)
class ConsumerOptions:
    """`heartbeat_s` between renewals of leases; `silence_s` without a word from a producer means
    that it is lost; `block_bytes` of the pools on both sides."""

    block_bytes: int
    heartbeat_s: float
    silence_s: float


class FetchOwner(Protocol):
    """What a fetch asks of the consumer that it belongs to."""

    client: SideClient
    peers: Peers
    transport: Transport
    options: ConsumerOptions
    meter: Meter

    def confirm(self, fetch: Fetch) -> None:
        """Ask the producer whether it held the blocks all the time; the answer sets `held`."""

    def forget(self, fetch: Fetch) -> None:
        """The fetch is over."""

    def leave(self, fetch: Fetch) -> None:
        """The fetch is given up."""


class Fetch(KVLoad):
    """Handshake, blocks as they are told, copies once there is a place for them, confirmation."""

    def __init__(self, consumer: FetchOwner, ref: KVRef, num_blocks: int) -> None:
        self.ref = ref
        self.address: Address = (ref.host, ref.port)
        self.generation = 0
        self.held: bool | None = None
        self._consumer = consumer
        self._num_blocks = num_blocks
        self._since = consumer.client.listened_s
        self._peer: str | None = None
        self._ready: list[int] = []
        self._copies = Copies(consumer.transport, consumer.options.block_bytes)
        self._end: KVEnd | None = None
        self._connection: int | None = None
        self._confirmed: float | None = None
        self._error: TransferError | None = None
        self._over = False

    def on_ready(self, message: KVReady) -> None:
        """Blocks are complete on the other side, or it has begun anew."""
        if not self._is_meant(message.generation):
            return None
        if self._end is not None:
            return self._fail(
                f"the producer offered blocks {message.first}+{len(message.blocks)} after it had "
                "sealed the offer"
            )
        if message.generation != self.generation and message.first == 0:
            self.generation = message.generation
            self._ready = []
            self._copies.restart()
        fits = len(self._ready) + len(message.blocks) <= self._num_blocks
        if message.generation != self.generation or message.first != len(self._ready) or not fits:
            return self._fail(
                f"the producer offered blocks {message.first}+{len(message.blocks)}, "
                f"{len(self._ready)} of {self._num_blocks} were offered before"
            )
        self._ready += message.blocks
        return None

    def on_end(self, message: KVEnd) -> None:
        """May come again, as an answer to a heartbeat."""
        if not self._is_meant(message.generation):
            return None
        self.generation = self.generation or message.generation
        if message.generation != self.generation:
            return self._fail("stale generation: the offer was begun again since this end was sent")
        self._end = message
        return None

    def on_gone(self, message: KVGone) -> None:
        """What has been confirmed cannot go: a heartbeat that crossed the confirmation asks for
        what has rightly ended."""
        if self.held is None:
            self._fail(message.reason)

    def _is_meant(self, generation: int) -> bool:
        """Whether a message is about the offer that the handle names, if it names one."""
        if self.ref.generation in (0, generation):
            return True
        self._fail("the producer's message concerns another offer of the same request")
        return False

    def _fail(self, reason: str) -> None:
        """`poll` raises this, or what was wrong before."""
        self._error = self._error or TransferError(f"request {self.ref.request_id}: {reason}")

    @property
    def asked(self) -> bool:
        """Whether the producer has been asked for this request's KV."""
        return self._peer is not None

    @property
    def fed(self) -> bool:
        return bool(self._ready) or self._end is not None

    def place(self, first: int, blocks: Sequence[int]) -> None:
        self._copies.begin(first, blocks)

    def unplace(self) -> None:
        if self._confirmed is not None:
            # The producer has let go of its copy.
            self._fail("its blocks were given to another request")
        self._copies.stop()

    def poll(self) -> KVArrival | None:
        self._check_peer()
        if self._peer is None:
            self._connect()
        if self._error is None:
            self._copies.advance(self._peer, self._ready)
        if self._error is not None:
            raise self._error
        if self._end is None or not (self._copies.placed and self._copies.idle):
            return None
        if self._confirmed is None:
            self._confirm()
        if self.held is None:
            return None
        if not self.held:
            raise TransferError(
                f"request {self.ref.request_id}: the lease of the KV expired while it was copied"
            )
        return self._arrived(self._end)

    def _arrived(self, end: KVEnd) -> KVArrival:
        self._over = True
        self._consumer.forget(self)
        copies = self._copies
        self._consumer.meter.moved(copies.size, copies.elapsed_s, copies.copy_s)
        return KVArrival(end.num_tokens, end.rope_delta, end.outputs)

    def _confirm(self) -> None:
        """Everything that was told is here; ask whether it was held all the time."""
        if len(self._ready) != self._num_blocks:
            raise TransferError(
                f"request {self.ref.request_id}: the producer offered {len(self._ready)} blocks "
                f"instead of {self._num_blocks}"
            )
        self._confirmed = self._consumer.client.listened_s
        self._consumer.confirm(self)

    def _connect(self) -> None:
        peer = self._consumer.peers.ready(self.address, REGION)
        if peer is None:
            return
        if peer != self.ref.instance_id:
            raise TransferError(
                f"request {self.ref.request_id}: instance {self.ref.instance_id[:64]} has left "
                f"{self.address[0]}:{self.address[1]}, where instance {peer} listens"
            )
        want = KVWant(self.ref.request_id, self.ref.growing)
        if not self._consumer.client.send(self.address, want):
            raise TransferError(f"request {self.ref.request_id}: the producer accepts no messages")
        self._peer, self._connection = peer, self._consumer.client.connection_number(self.address)

    def _check_peer(self) -> None:
        """Notice a producer that is gone, was so for a moment, or has said nothing for too long
        since it was asked."""
        client = self._consumer.client
        now = client.listened_s
        # The connection may be old, and was silent while no fetch asked for anything.
        silent_s = min(client.silent_s(self.address), now - self._since)
        computing, step_s = client.computing(self.address)
        # A producer that answers heartbeats alone is not silent, but still owes this answer. Its
        # time begins anew while it computes a step.
        if self._confirmed is not None and self.held is None:
            silent_s = max(silent_s, now - max(self._confirmed, computing))
        if client.broken(self.address):
            # For all that use this connection: they see by its number that it is gone.
            self._consumer.peers.lost(self.address)
            self._error = self._error or TransferError("the producer has ended or was disconnected")
        elif self._peer is not None and client.connection_number(self.address) != self._connection:
            self._error = self._error or TransferError("the connection to the producer broke")
        elif step_s > _LONGEST_STEP_S:
            self._error = self._error or TransferTimeout("the producer computes without an end")
        elif silent_s > self._consumer.options.silence_s:
            self._error = self._error or TransferTimeout(
                "the producer sent nothing before the timeout (kv_timeout)"
            )

    def cancel(self) -> None:
        if self._over:
            return
        self._over = True
        self._copies.restart()
        self._fail("the fetch was cancelled")
        self._consumer.leave(self)

    @property
    def settled(self) -> bool:
        return self._copies.settled
