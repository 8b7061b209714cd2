"""KV of requests that cross engines: published after prefill, fetched before decode."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from connectors.base import KVArrival, KVConnector, KVLoad
from protocol.errors import TransferError
from protocol.refs import KVRef
from protocol.types import RequestOutput
from services.engine.request import Request, Status
from services.engine.scheduler import Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    request: Request
    blocks: list[int]


@dataclass
class _Fetch:
    request: Request
    ref: KVRef
    load: KVLoad


class Transfers:
    """Owns published blocks until their consumer has them, and destination blocks until no
    transfer writes to them."""

    def __init__(
        self, connector: KVConnector, scheduler: Scheduler, *, fail_on_error: bool
    ) -> None:
        self._connector = connector
        self._scheduler = scheduler
        self._fail_on_error = fail_on_error
        self._published: dict[str, list[int]] = {}
        self._fetches: list[_Fetch] = []
        self._open: set[str] = set()
        self._held: dict[str, _Held] = {}
        self.arrived: list[tuple[Request, KVArrival]] = []
        self._quarantine: list[tuple[KVLoad, list[int]]] = []
        self.fetched = 0
        self.failed = 0

    @property
    def active(self) -> bool:
        return bool(self._fetches or self._published or self._quarantine)

    @property
    def shares(self) -> bool:
        """Whether requests can be handed over to and from here at all."""
        return self._connector.shares

    def grown(self, request: Request) -> None:
        """Tell whoever will decode a request which of its blocks are complete by now."""
        request_id = request.source.request_id
        if request_id not in self._open:
            self._open.add(request_id)
            self._connector.open(request_id)
        full = request.num_computed // self._scheduler.blocks.block_size
        self._connector.extend(request_id, request.blocks[:full])

    def hold(self, request: Request) -> None:
        """A request that hands over has put out its token: keep its KV until `hand_over`."""
        blocks = self._scheduler.finish(request, keep_blocks=True)
        self._held[request.source.request_id] = _Held(request, blocks)

    def hand_over(self, outputs: Sequence[RequestOutput]) -> None:
        """Offer the KV of the requests held in this step, unless all their choices have ended.

        The first output of a choice that goes on gets the `kv_transfer_params`.
        """
        for request_id, held in self._held.items():
            mine = [output for output in outputs if output.request_id == request_id]
            going_on = [output for output in mine if output.finish_reason == "length"]
            if not going_on:
                self._scheduler.blocks.release(held.blocks)
                self.stop_growing(request_id, "every choice has ended")
                continue
            tokens = {output.index: output.token_ids for output in mine}
            going_on[0].kv_transfer_params = self._publish(held, tokens).to_params()
        self._held.clear()

    def _publish(self, held: _Held, outputs: dict[int, list[int]]) -> KVRef:
        request, blocks = held.request, held.blocks
        request_id = request.source.request_id
        kept = self._scheduler.blocks.blocks_for(request.num_prompt)
        self._scheduler.blocks.release(blocks[kept:])
        self._published[request_id] = blocks[:kept]
        self._open.discard(request_id)
        self._connector.extend(request_id, blocks[:kept])
        return self._connector.end(request_id, request.num_prompt, request.rope_delta, outputs)

    def stop_growing(self, request_id: str, reason: str) -> None:
        """The KV that was being offered will not be completed here."""
        if request_id in self._open:
            self._open.discard(request_id)
            self._connector.withdraw(request_id, reason)

    def withdraw(self, request_id: str) -> None:
        """Nobody will fetch this request's blocks."""
        self.stop_growing(request_id, "the request was aborted")
        if request_id in self._published:
            self._connector.withdraw(request_id, "the request was aborted")

    def begin(self) -> None:
        """Start fetching for waiting requests, oldest first, as far as there is room."""
        scheduler = self._scheduler
        while scheduler.waiting and scheduler.has_room():
            request = scheduler.waiting[0]
            if request.remote is None or not self._begin(request, request.remote):
                return

    def _begin(self, request: Request, ref: KVRef) -> bool:
        """False if the request must keep waiting for blocks."""
        blocks = self._scheduler.blocks
        total = blocks.blocks_for(len(request.tokens))
        matched = self._scheduler.match_prefix(request)
        if not blocks.can_allocate(total - len(matched), matched):
            return False
        request.remote = None
        self._scheduler.waiting.remove(request)
        self._scheduler.take_prefix(request, matched)
        request.blocks += blocks.allocate(total - len(matched)) or []
        request.num_cached = request.num_prompt
        self._start(request, ref, len(matched))
        return True

    def _start(self, request: Request, ref: KVRef, held: int) -> None:
        needed = self._scheduler.blocks.blocks_for(ref.num_tokens or request.num_prompt)
        request.status = Status.LOADING
        self._scheduler.loading.append(request)
        try:
            _check_ref(ref, request, self._scheduler.blocks.block_size)
            load = self._connector.fetch(ref, held, request.blocks[held:needed])
            self._fetches.append(_Fetch(request, ref, load))
        except TransferError as error:
            self._connector.decline(ref)
            self._fall_back(request, error)

    def poll(self) -> list[tuple[Request, TransferError]]:
        """Advance transfers; returns requests that fail because of one. Those whose KV is here are
        running, and in `arrived` until the caller takes them."""
        waiting = [r.remote for r in self._scheduler.waiting if r.remote is not None]
        self._connector.keep(waiting)
        for request_id in self._connector.poll():
            self._scheduler.blocks.release(self._published.pop(request_id, []))
        self._settle()
        failed: list[tuple[Request, TransferError]] = []
        for fetch in list(self._fetches):
            try:
                arrival = fetch.load.poll()
                if arrival is not None:
                    self._arrived(fetch, arrival)
            except TransferError as error:
                self._give_up(fetch, error)
                if self._fail_on_error:
                    failed.append((fetch.request, error))
        return failed

    def _give_up(self, fetch: _Fetch, error: TransferError) -> None:
        """The fetch has failed: its blocks wait until nothing writes to them, its request computes
        its KV in others."""
        request = fetch.request
        self._fetches.remove(fetch)
        fetch.load.cancel()
        self._quarantine.append((fetch.load, request.blocks))
        request.blocks = []
        self._fall_back(request, error)

    def _arrived(self, fetch: _Fetch, arrival: KVArrival) -> None:
        request = fetch.request
        self._fetches.remove(fetch)
        self.fetched += 1
        request.num_computed = min(arrival.num_tokens, len(request.tokens) - 1)
        request.rope_delta = arrival.rope_delta
        self._scheduler.store_prefix(request)
        self._scheduler.loading.remove(request)
        self._scheduler.start(request)
        self.arrived.append((request, arrival))

    def _fall_back(self, request: Request, error: TransferError) -> None:
        """The request computes its KV itself, from scratch."""
        logger.warning("request %s: KV not fetched, computing it: %s", *request.key[:1], error)
        self.failed += 1
        self._scheduler.loading.remove(request)
        self._scheduler.blocks.release(request.blocks)
        request.reset()
        request.num_cached = None
        self._scheduler.add(request)

    def abort(self, request: Request) -> bool:
        """Stop a fetch under way; True if its blocks stay in quarantine until it has settled."""
        fetch = next((f for f in self._fetches if f.request is request), None)
        if fetch is None:
            if request.remote is not None:
                self._connector.decline(request.remote)
            return False
        self._fetches.remove(fetch)
        fetch.load.cancel()
        self._quarantine.append((fetch.load, self._scheduler.finish(request, keep_blocks=True)))
        return True

    def _settle(self) -> None:
        for load, blocks in list(self._quarantine):
            if load.settled:
                self._quarantine.remove((load, blocks))
                self._scheduler.blocks.release(blocks)

    def owned_blocks(self) -> Sequence[list[int]]:
        return [*self._published.values(), *(blocks for _, blocks in self._quarantine)]


def _check_ref(ref: KVRef, request: Request, block_size: int) -> None:
    if ref.growing:
        return
    if not 0 < ref.num_tokens <= request.num_prompt:
        raise TransferError(
            f"KV of {ref.num_tokens} tokens offered for a prompt of {request.num_prompt}"
        )
    if len(ref.block_ids) != -(-ref.num_tokens // block_size):
        raise TransferError(f"{len(ref.block_ids)} blocks cannot hold {ref.num_tokens} tokens")
