"""KV that another worker decodes with: offered while it is computed, held until it is fetched.

offer → advance, as blocks are complete → seal, when all are → release, or the connector ends it
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from connectors.kv.base import Fence, KVConnector
from protocol.refs import KVRef
from protocol.types import RequestOutput
from services.engine.scheduling.request import Request
from services.engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True)
class _Held:
    request: Request
    blocks: list[int]


class KVOffers:
    """Owns published blocks until their consumer has them.

    An offer may end by itself at any time, as when it cannot be published; its request goes on
    without.
    """

    def __init__(self, connector: KVConnector, scheduler: Scheduler) -> None:
        self._connector = connector
        self._scheduler = scheduler
        self._open: set[str] = set()
        self._held: dict[str, _Held] = {}
        self._published: dict[str, list[int]] = {}
        self._fence: Fence | None = None

    def __len__(self) -> int:
        """Offers that wait for their consumers."""
        return len(self._published)

    def offer(self, request: Request) -> None:
        """A request that another worker will decode is here; that worker may be asking already."""
        # What an earlier attempt with this id has left would be taken for this one's.
        self.release(request.source.request_id, "the request was sent again")
        self._open.add(request.source.request_id)
        self._connector.offer(request.source.request_id)

    def stepped(self, fence: Fence | None) -> None:
        """A step was launched: what it writes is complete once `fence` has passed."""
        self._fence = fence

    def advance(self, request: Request) -> None:
        """Tell the worker that will decode a request which of its blocks are complete, as soon as
        the last step has written them."""
        if request.source.request_id in self._open:
            size = self._scheduler.blocks.block_size
            # What is behind the prompt, put out before the request came here, is not asked for.
            full = min(request.num_computed, request.num_prompt) // size
            self._connector.advance(request.source.request_id, request.blocks[:full], self._fence)

    def hold(self, request: Request) -> None:
        """A request that hands over has put out its token: keep its KV until `seal`. That of one
        choice does for all."""
        if request.source.request_id in self._held:
            self._scheduler.finish(request)
            return
        blocks = self._scheduler.finish(request, keep_blocks=True)
        self._held[request.source.request_id] = _Held(request, blocks)

    def seal(self, outputs: Sequence[RequestOutput]) -> None:
        """Complete the offers of the requests held in this step, unless all their choices have
        ended or their offers have.

        The first output of a choice that goes on gets the `kv_transfer_params`. Without them its
        KV is computed where it is decoded.
        """
        for request_id, held in self._held.items():
            mine = [output for output in outputs if output.request_id == request_id]
            # After the one token that it may have here: another worker decodes it.
            going_on = [output for output in mine if output.finish_reason == "length"]
            if not going_on or request_id not in self._open:
                self._scheduler.blocks.release(held.blocks)
                self.abandon(request_id, "every choice of the request has ended")
                continue
            tokens = {output.index: output.token_ids for output in mine}
            going_on[0].kv_transfer_params = self._publish(held, tokens).to_params()
        self._held.clear()

    def _publish(self, held: _Held, outputs: dict[int, list[int]]) -> KVRef:
        request, blocks = held.request, held.blocks
        request_id = request.source.request_id
        # The token put out here has no KV yet; a block taken for it holds nothing to hand over.
        kept = self._scheduler.blocks.blocks_for(request.num_prompt)
        self._scheduler.blocks.release(blocks[kept:])
        self._published[request_id] = blocks[:kept]
        self._open.discard(request_id)
        # With the last block, full or not: nothing is added to it here any more.
        self._connector.advance(request_id, blocks[:kept], self._fence)
        return self._connector.seal(request_id, request.num_prompt, request.rope_delta, outputs)

    def restart(self, request_id: str) -> None:
        """A request was preempted: what was offered of its KV is gone; it is computed anew."""
        if request_id in self._open:
            self._connector.restart(request_id)

    def abandon(self, request_id: str, reason: str) -> None:
        """The KV that was being offered will not be completed here."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._connector.release(request_id, reason)

    def release(self, request_id: str, reason: str = "the request was aborted") -> None:
        """End a request's offer: no worker will fetch its blocks."""
        self.abandon(request_id, reason)
        if request_id in self._published:
            # First: a peer that still reads these blocks must hear that they were not held.
            self._connector.release(request_id, reason)
            self._scheduler.blocks.release(self._published.pop(request_id))

    def ended(self, request_ids: Iterable[str]) -> None:
        """The connector has ended these."""
        for request_id in request_ids:
            self._open.discard(request_id)
            self._scheduler.blocks.release(self._published.pop(request_id, []))

    def owned_blocks(self) -> Sequence[list[int]]:
        return [*self._published.values()]

    def close(self) -> None:
        """Withdraw everything; requests have been aborted by then."""
        for request_id in [*self._open, *self._published]:
            self.release(request_id, "the engine is stopping")
