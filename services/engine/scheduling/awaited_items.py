"""How far a prompt can be computed with the embeddings that are there; requests that wait for one
are passed by without another look at their prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.types import MMItem
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.request import Request

_LOOK_EVERY = 64  # steps between looks at a request whose embedding is not there


@dataclass
class AwaitedItems:
    """Which waiting requests need not be looked at in a step; a thousand of them cost it little."""

    embeddings: EmbeddingCache
    looks: int = 0  # how often those that wait were looked through

    def worth_a_look(self, waiting: Iterable[Request]) -> list[Request]:
        """Those of the waiting requests that may start: not those that were passed by and still
        lack their embedding, save now and then, as what is known of their prefix changes too."""
        self.looks += 1
        looks, ready = self.looks, self.embeddings.ready
        return [
            request
            for request in waiting
            if not request.awaits_item
            or ready(request.awaits_item)
            # By arrival, so that not all of a thousand are looked at in the same step.
            or (looks + request.arrival) % _LOOK_EVERY == 0
        ]

    def pass_by(self, request: Request) -> None:
        """A request cannot start: it gives up embeddings that the known part of its prompt does not
        need, as there may be no room for these and others."""
        request.awaits_item = self._missing(request)
        # Before the release, which keeps the items behind `num_matched`.
        request.num_matched, request.num_computed = request.num_computed, 0
        self.embeddings.release(request)

    def _missing(self, request: Request) -> MMItem | None:
        """The media item at the first token to compute, if its embedding is not here yet."""
        start = request.num_computed
        for item in request.items_in(start, start + 1):
            if not self.embeddings.ready(item):
                return item
        return None


def chunk_size(
    request: Request, embeddings: EmbeddingCache, limits: Limits, budget: int, most: int
) -> int:
    """Tokens that can run now: within the budget, up to the first embedding not there yet, and
    without the last if what may follow it is not known yet. A media span that must be whole may
    take up to `most`."""
    start = request.num_computed
    known = len(request.tokens) - (not request.may_sample)
    end = min(known, start + budget)
    if limits.whole_prompts and end < known:
        return 0
    if not request.mm_items:
        return end - start
    for item in request.items_in(start, end):
        if not embeddings.ready(item):
            end = max(start, item.offset)
            break
        if limits.whole_media and item.end > end:
            # By `most`, not the budget: a span longer than prompts' share would never run.
            fits = item.offset <= start and item.end <= min(known, start + most)
            end = item.end if fits else max(start, item.offset)
            break
    return end - start
