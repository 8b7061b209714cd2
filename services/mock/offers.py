"""KV that this worker holds for others, each under a lease."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from protocol.refs import KVRef
from services.mock.kv_blocks import Holding, KVBlocks
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
class Offer:
    body: OfferBody
    holding: Holding
    expires: float


@dataclass
class Offers:
    """`growing` are requests whose KV is being computed to be handed over; `settled` collects those
    that wait no longer, offered or not, until the caller clears it."""

    blocks: KVBlocks
    lease_s: float
    growing: set[str] = field(default_factory=set)
    settled: list[str] = field(default_factory=list)
    expired: int = 0
    _offers: OrderedDict[str, Offer] = field(default_factory=OrderedDict)
    _generation: int = 0

    def __len__(self) -> int:
        return len(self._offers)

    def publish(
        self,
        request_id: str,
        num_tokens: int,
        digest: int,
        outputs: dict[int, list[int]],
        holding: Holding,
        now: float,
    ) -> OfferBody:
        """Hold blocks for whoever fetches them within the lease."""
        self._generation += 1
        self.release(request_id)
        body = OfferBody(request_id, self._generation, num_tokens, f"{digest:016x}", outputs)
        self._offers[request_id] = Offer(body, holding, now + self.lease_s)
        self.stop_growing(request_id)
        return body

    def stop_growing(self, request_id: str) -> None:
        """Whoever waits for this request's KV is told how it stands."""
        if request_id in self.growing:
            self.growing.discard(request_id)
            self.settled.append(request_id)

    def find(self, request_id: str, now: float) -> OfferBody | None:
        """The offer, its lease renewed; None if nothing is held under this name."""
        offer = self._offers.get(request_id)
        if offer is None or offer.expires <= now:
            return None
        offer.expires = now + self.lease_s
        self._offers.move_to_end(request_id)
        return offer.body

    def confirm(self, request_id: str, generation: int, now: float) -> bool:
        """The consumer has copied: was the offer good until here? It ends here either way."""
        offer = self._offers.get(request_id)
        if offer is None or offer.body.generation != generation:
            return False
        self.release(request_id)
        return offer.expires > now

    def release(self, request_id: str) -> None:
        """End an offer; idempotent."""
        offer = self._offers.pop(request_id, None)
        if offer is not None:
            self.blocks.release(offer.holding)

    def expire(self, now: float) -> None:
        """End what nobody has fetched in time."""
        while self._offers:
            request_id, oldest = next(iter(self._offers.items()))
            if oldest.expires > now:
                break
            self.expired += 1
            self.release(request_id)

    @property
    def next_expiry(self) -> float | None:
        return next((offer.expires for offer in self._offers.values()), None)

    def holdings(self) -> Iterable[Holding]:
        return [offer.holding for offer in self._offers.values()]

    def names(self) -> list[str]:
        return list(self._offers)


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
