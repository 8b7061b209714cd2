"""The producer's side of KV: what is offered, who has asked for it, until when it is held."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from connectors.leases import LeaseTable
from connectors.messages import (
    Alive,
    FromProducer,
    Heartbeat,
    Held,
    KVEnd,
    KVFetched,
    KVGone,
    KVReady,
    KVWant,
    Release,
)
from connectors.side_server import Sender, SideServer

logger = logging.getLogger(__name__)
_MAX_EARLY = 10_000
_NOTHING = "the producer holds no KV of this request for this worker"


@dataclass
class _Offer:
    """`blocks` are complete so far; `sent` of them (counted from the table's start) are told. Once
    `complete` no more come, though some may not be told yet."""

    generation: int
    blocks: list[int] = field(default_factory=list)
    consumer: Sender | None = None
    sent: int = 0
    complete: bool = False
    end: KVEnd | None = None


@dataclass(frozen=True)
class _Early:
    """A consumer that was placed before the request came here."""

    consumer: Sender
    until: float


class KVProducer:
    """An offer begins with `offer`, grows with `advance`, is complete with `seal`, and ends when
    its consumer has it, gives it up, stops renewing its lease, or the engine releases it.

    Its consumer is the last that asked for it. What others say of it changes nothing.
    """

    def __init__(self, server: SideServer, lease_s: float) -> None:
        self.leases: LeaseTable[str] = LeaseTable(lease_s)
        self._offers: dict[str, _Offer] = {}
        self._ended: list[str] = []
        self._early: OrderedDict[str, _Early] = OrderedDict()
        server.on(KVWant, self._wanted)
        server.on(KVFetched, self._fetched)
        server.on(Release, self._released)
        server.on(Heartbeat, self._heartbeat)

    def offer(self, request_id: str) -> int:
        """Begin an offer; its lease does not lapse while its KV is being computed."""
        generation = self.leases.grant(request_id, lapses=False)
        self._offers[request_id] = _Offer(generation)
        early = self._early.pop(request_id, None)
        if early is not None:
            self._offers[request_id].consumer = early.consumer
        return generation

    def advance(self, request_id: str, blocks: Sequence[int]) -> None:
        """`blocks`, from the table's start, are complete."""
        offer = self._offers[request_id]
        offer.blocks = list(blocks)
        self._tell(request_id, offer)

    def restart(self, request_id: str) -> None:
        """What was complete is not any more: the consumer is told to forget it."""
        offer = self._offers[request_id]
        # A new generation: a confirmation of the former blocks, which may be on its way, finds that
        # they were not held.
        offer.generation = self.leases.grant(request_id, lapses=False)
        offer.blocks, offer.sent = [], 0
        _say(offer.consumer, KVReady(request_id, offer.generation, 0, []))

    def complete(self, request_id: str) -> None:
        """No more blocks come: `seal` will follow, unless the consumer gives it up before."""
        self._offers[request_id].complete = True

    def seal(self, request_id: str, end: KVEnd) -> None:
        """Nothing more comes; from here on the consumer has one lease's time."""
        offer = self._offers[request_id]
        offer.end = end
        self.leases.start_clock(request_id)
        self._tell(request_id, offer)

    def release(self, request_id: str, reason: str) -> None:
        """End an offer from this side; idempotent."""
        offer = self._offers.pop(request_id, None)
        if offer is None:
            return
        self.leases.release(request_id)
        _say(offer.consumer, KVGone(request_id, reason))

    def generation(self, request_id: str) -> int:
        return self._offers[request_id].generation

    def poll(self) -> list[str]:
        """Requests whose offers have ended since the last call: their blocks may be reused."""
        for request_id in self.leases.expire():
            offer = self._offers.pop(request_id)
            self._ended.append(request_id)
            _say(offer.consumer, KVGone(request_id, "the lease of the KV has expired"))
        # All wait equally long, so that the first to ask is the first to be told.
        while self._early and next(iter(self._early.values())).until <= time.monotonic():
            request_id, early = self._early.popitem(last=False)
            early.consumer(KVGone(request_id, "the producer never received the request"))
        ended, self._ended = self._ended, []
        return ended

    def _tell(self, request_id: str, offer: _Offer) -> None:
        if offer.consumer is None:
            return
        if offer.sent < len(offer.blocks):
            fresh = offer.blocks[offer.sent :]
            offer.consumer(KVReady(request_id, offer.generation, offer.sent, fresh))
            offer.sent = len(offer.blocks)
        # Last, on the same connection: a consumer that has it has been told of every block.
        if offer.end is not None:
            offer.consumer(offer.end)

    def _wanted(self, message: KVWant, consumer: Sender) -> None:
        request_id = message.request_id
        offer, early = self._offers.get(request_id), self._early.pop(request_id, None)
        known = offer or early
        if known is not None and known.consumer not in (None, consumer):
            _say(known.consumer, KVGone(request_id, "another worker asked for the same KV"))
        if offer is not None:
            # All of it again: what another consumer was told, this one has not heard.
            offer.consumer, offer.sent = consumer, 0
            self._tell(request_id, offer)
        elif message.growing and len(self._early) < _MAX_EARLY:
            until = time.monotonic() + self.leases.seconds
            self._early[request_id] = _Early(consumer, until)
        else:
            consumer(KVGone(request_id, _NOTHING))

    def _fetched(self, message: KVFetched, consumer: Sender) -> None:
        """Only what has ended can have been fetched."""
        offer = self._offers.get(message.request_id)
        held = (
            offer is not None
            and offer.end is not None
            and offer.consumer == consumer
            and self.leases.holds(message.request_id, message.generation)
        )
        consumer(Held(message.query, held))
        if held:
            self._finish(message.request_id)

    def _released(self, message: Release, consumer: Sender) -> None:
        for request_id in message.request_ids:
            early = self._early.get(request_id)
            if early is not None and early.consumer == consumer:
                del self._early[request_id]
            offer = self._offers.get(request_id)
            # None: a worker that got the handle may give the request up before it asks.
            if offer is not None and offer.consumer in (None, consumer):
                self._release(request_id, offer)

    def _release(self, request_id: str, offer: _Offer) -> None:
        """No consumer wants an offer now. While it grows another one still may."""
        if offer.complete:
            self._finish(request_id)
        else:
            offer.consumer = None

    def _finish(self, request_id: str) -> None:
        del self._offers[request_id]
        self.leases.release(request_id)
        self._ended.append(request_id)

    def _heartbeat(self, message: Heartbeat, consumer: Sender) -> None:
        consumer(Alive())
        for request_id in message.request_ids:
            offer, early = self._offers.get(request_id), self._early.get(request_id)
            known = offer or early
            if known is None or known.consumer != consumer:
                # Said again at each heartbeat, as the first time may have been lost.
                consumer(KVGone(request_id, _NOTHING))
            elif offer is not None:
                self._renew(request_id, offer)

    def _renew(self, request_id: str, offer: _Offer) -> None:
        """The end is said again: it may have been lost, and its consumer would wait for it, and
        renew the lease, for ever. Of lost blocks it learns by that."""
        self.leases.renew(request_id)
        if offer.end is not None:
            _say(offer.consumer, offer.end)

    @property
    def blocks_held(self) -> int:
        """Blocks that are offered."""
        return sum(len(offer.blocks) for offer in self._offers.values())

    @property
    def offered(self) -> list[str]:
        return list(self._offers)


def _say(consumer: Sender | None, message: FromProducer) -> None:
    if consumer is not None:
        consumer(message)
