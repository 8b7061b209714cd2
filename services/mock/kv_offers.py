"""KV that a mock worker holds for others, each under a lease."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from protocol.refs import KVRef
from services.engine.scheduling.seams import Clock
from services.mock.settings import EngineSettings


class OfferBody(msgspec.Struct, frozen=True):
    """An offer as a consumer gets it. `digest` stands for what the blocks contain: who fetches the
    KV of another prompt goes on with that prompt's tokens, as with real KV."""

    request_id: str
    generation: int
    num_tokens: int
    digest: str
    outputs: dict[int, list[int]]


@dataclass
class _Offer:
    body: OfferBody
    expires: float


class CountedOffers:
    """`settled` collects requests whose KV was being computed and is no more, offered or not, until
    the caller clears it."""

    def __init__(self, settings: EngineSettings, clock: Clock) -> None:
        self.settled: list[str] = []
        self.expired = 0
        self._settings = settings
        self._clock = clock
        self._growing: set[str] = set()
        self._sealed: OrderedDict[str, _Offer] = OrderedDict()
        self._ended: list[str] = []
        self._generation = 0

    def open(self, request_id: str) -> None:
        """Its KV is being computed."""
        self._growing.add(request_id)

    def seal(
        self, request_id: str, num_tokens: int, digest: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        """Hold it for a consumer that fetches it within the lease."""
        self._generation += 1
        body = OfferBody(request_id, self._generation, num_tokens, f"{digest:016x}", outputs)
        self._sealed[request_id] = _Offer(body, self._clock() + self._settings.lease_s)
        self._settle(request_id)
        return kv_ref(self._settings, body)

    def _settle(self, request_id: str) -> None:
        if request_id in self._growing:
            self._growing.discard(request_id)
            self.settled.append(request_id)

    def withdraw(self, request_id: str) -> None:
        """End it from this side; idempotent."""
        self._settle(request_id)
        # `poll` does not tell of it: the engine, which withdraws it, frees the blocks.
        self._sealed.pop(request_id, None)

    def find(self, request_id: str) -> OfferBody | None:
        """A consumer asks: the offer, its lease renewed; None if nothing is held so named."""
        offer, now = self._sealed.get(request_id), self._clock()
        if offer is None or offer.expires <= now:
            return None
        offer.expires = now + self._settings.lease_s
        self._sealed.move_to_end(request_id)
        return offer.body

    def confirm(self, request_id: str, generation: int) -> bool:
        """A consumer has copied: was the offer good until here? It ends here either way."""
        offer = self._sealed.get(request_id)
        if offer is None or offer.body.generation != generation:
            return False
        self.release(request_id)
        return offer.expires > self._clock()

    def release(self, request_id: str) -> None:
        """A consumer does not want it; idempotent."""
        if self._sealed.pop(request_id, None) is not None:
            self._ended.append(request_id)

    def poll(self) -> list[str]:
        """Offers that have ended by themselves: fetched, released or late."""
        now = self._clock()
        # In the order of expiry: `find` moves what it renews to the end.
        while self._sealed and (oldest := next(iter(self._sealed.items())))[1].expires <= now:
            self.expired += 1
            self.release(oldest[0])
        ended, self._ended = self._ended, []
        return ended

    @property
    def next_time(self) -> float | None:
        """When `poll` has something to tell."""
        if self._ended:
            return self._clock()
        return next((offer.expires for offer in self._sealed.values()), None)

    def names(self) -> list[str]:
        """Requests whose KV is held here."""
        return list(self._sealed)


def kv_ref(settings: EngineSettings, offer: OfferBody | None = None) -> KVRef:
    """Where a request's KV is; without an offer, where to ask for what is still computed."""
    tokens = offer.num_tokens if offer is not None else 0
    return KVRef(
        request_id=offer.request_id if offer is not None else "",
        instance_id=settings.instance_id,
        block_ids=tuple(range(-(-tokens // settings.block_size))),
        num_tokens=tokens,
        host=settings.host,
        port=settings.port,
        compatibility=settings.compatibility,
        generation=offer.generation if offer is not None else 0,
        lease_s=settings.lease_s,
    )
