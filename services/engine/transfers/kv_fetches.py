"""KV of requests that cross engines: offered by prefill, fetched before decode."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Sequence

from connectors.kv.base import Fence, KVArrival, KVConnector, KVLoad
from protocol.errors import TransferError
from protocol.refs import KVRef
from services.engine.scheduling.request import Request, RequestKey, Status
from services.engine.scheduling.scheduler import Scheduler
from services.engine.transfers.kv_offers import KVOffers
from services.engine.transfers.placed_fetch import Fetch, check_ref

logger = logging.getLogger(__name__)


class KVFetches:
    """Owns destination blocks until no transfer writes to them; `offers` are what others fetch
    from here."""

    def __init__(
        self,
        connector: KVConnector,
        scheduler: Scheduler,
        *,
        vocabulary: int,
        fail_on_error: bool,
    ) -> None:
        """Token ids lie below `vocabulary`."""
        self._connector = connector
        self._scheduler = scheduler
        self.offers = KVOffers(connector, scheduler)
        self._vocabulary = vocabulary
        self._fail_on_error = fail_on_error
        self._fetches: dict[RequestKey, Fetch] = {}
        self.arrived: list[tuple[Request, KVArrival]] = []
        self._quarantine: list[tuple[KVLoad, list[int]]] = []
        self._refused: list[tuple[Request, TransferError]] = []
        self._fence: Fence | None = None
        self.fetched = 0
        self.failed = 0

    @property
    def active(self) -> bool:
        return bool(self._fetches or self.offers or self._quarantine)

    @property
    def shares(self) -> bool:
        """Whether requests can be handed over to and from here at all."""
        return self._connector.shares

    def fetching(self, request: Request) -> bool:
        """Whether a request waits for KV from another worker."""
        return request.key in self._fetches

    def fetch(self, request: Request, ref: KVRef) -> None:
        """Ask for a request's KV; it waits among `scheduler.remote` for blocks to put it in."""
        # A growing offer does not say how many tokens it will have: all of the prompt.
        needed = self._scheduler.blocks.blocks_for(ref.num_tokens or request.num_prompt)
        # Before what may fail: `_fall_back` takes it out of this queue again.
        insort(self._scheduler.remote, request, key=lambda r: r.order)
        try:
            self._connector.check(ref)
            check_ref(ref, request, self._scheduler.blocks.block_size)
            self._fetches[request.key] = Fetch(request, needed, self._connector.fetch(ref, needed))
        except TransferError as error:
            self._fall_back(request, error)
            # Told by the next `poll`, as other failures are: the policy `fail` ends requests there.
            self._refused.append((request, error))

    def stepped(self, fence: Fence | None) -> None:
        """A step was launched; `fence` passes once it writes to no block any more."""
        self._fence = fence
        self.offers.stepped(fence)

    def begin(self) -> None:
        """Give blocks to requests whose KV comes from elsewhere: those that can be copied now, then
        those that are still being computed there, each oldest first.

        The latter give theirs up again for the former, and for an older request that cannot start:
        they hold nothing yet, while their producer may be waiting for the former's to be fetched.
        """
        starved = self._scheduler.starved
        if starved is not None:
            self._unplace(lambda request: request.order > starved.order)
        fetches = [self._fetches[request.key] for request in self._scheduler.remote]
        # Sorting is stable: of each kind the oldest stays first.
        for fetch in sorted(fetches, key=lambda f: not f.load.fed):
            # Else what was just taken back would be given away again before the next step.
            if starved is not None and fetch.request.order > starved.order:
                continue
            # Something still reads into its former blocks; one load has one place at a time.
            if any(load is fetch.load for load, _ in self._quarantine):
                continue
            while not self._place(fetch):
                # Those behind it must not take the room that it waits for: so it ends here.
                if not fetch.load.fed or not self._unplace(lambda _: True, count=1):
                    return

    def _unplace(self, which: Callable[[Request], bool], count: int | None = None) -> int:
        """Take blocks back from loads that nothing has arrived for, youngest first."""
        unfed = [f.request for f in self._fetches.values() if f.placed and not f.load.fed]
        chosen = sorted(filter(which, unfed), key=lambda r: r.order, reverse=True)[:count]
        for request in chosen:
            self.unplace(request)
        return len(chosen)

    def unplace(self, request: Request) -> None:
        """A load gives its blocks up and waits for others."""
        fetch = self._fetches[request.key]
        fetch.unplace()
        self._scheduler.loading.remove(request)
        self._retire(fetch.load, request)
        request.status = Status.WAITING
        insort(self._scheduler.remote, request, key=lambda r: r.order)

    def _retire(self, load: KVLoad, request: Request) -> None:
        """A load's blocks are free, at once or when nothing writes to them any more."""
        if load.settled:
            self._scheduler.blocks.release(request.blocks)
        else:
            self._quarantine.append((load, request.blocks))
        request.reset()

    def _place(self, fetch: Fetch) -> bool:
        """False if there are no blocks, or too many requests."""
        request, blocks = fetch.request, self._scheduler.blocks
        total = blocks.blocks_for(len(request.tokens))
        matched = self._scheduler.match_prefix(request)
        room = blocks.can_allocate(total - len(matched), matched)
        if not room or not self._scheduler.has_room():
            return False
        self._scheduler.remote.remove(request)
        self._scheduler.take_prefix(request, matched)
        request.blocks += blocks.allocate(total - len(matched)) or []
        request.num_cached, request.received = request.num_prompt, True
        request.status = Status.LOADING
        self._scheduler.loading.append(request)
        held = min(len(matched), fetch.num_blocks)  # these are here and need no copy
        fetch.place(held, self._fence)
        return True

    def serve(self) -> None:
        """What peers need of an engine even while it does not step."""
        self.offers.ended(self._connector.poll())
        self._settle()

    def poll(self) -> list[tuple[Request, TransferError]]:
        """Advance transfers; returns requests that fail because of one. Those whose KV is here are
        running, and in `arrived` until the caller takes them."""
        self.serve()
        # One that was aborted since it was refused has ended, and must not end again.
        failed = [pair for pair in self._refused if pair[0].status is not Status.FINISHED]
        self._refused.clear()
        for fetch in list(self._fetches.values()):
            try:
                fetch.advance()
                arrival = fetch.load.poll()
                if arrival is not None:
                    self._arrived(fetch, arrival)
            except TransferError as error:
                self._give_up(fetch, error)
                failed.append((fetch.request, error))
        return failed if self._fail_on_error else []

    def _give_up(self, fetch: Fetch, error: TransferError) -> None:
        """The load has failed: its blocks wait until nothing writes to them, its request computes
        its KV in others."""
        del self._fetches[fetch.request.key]
        # Before the blocks are retired: reads that it calls back may have settled by then.
        fetch.load.cancel()
        self._retire(fetch.load, fetch.request)
        self._fall_back(fetch.request, error)

    def _arrived(self, fetch: Fetch, arrival: KVArrival) -> None:
        request = fetch.request
        # Before the fetch is forgotten: `_give_up` needs it if the check fails.
        self._check_arrival(fetch, arrival)
        del self._fetches[request.key]
        self.fetched += 1
        # The logits of the last token did not come with its KV: it is computed again.
        request.num_computed = min(arrival.num_tokens, len(request.tokens) - 1)
        request.rope_delta = arrival.rope_delta
        self._scheduler.store_prefix(request)
        self._scheduler.loading.remove(request)
        self._scheduler.start(request)
        self.arrived.append((request, arrival))

    def _check_arrival(self, fetch: Fetch, arrival: KVArrival) -> None:
        """`TransferError` if the producer has computed another prompt, or speaks of tokens that
        there are none of. It has put out exactly one of each choice that it names."""
        tokens = [token for output in arrival.outputs.values() for token in output]
        firsts = all(len(output) == 1 for output in arrival.outputs.values())
        fits = firsts and 0 < arrival.num_tokens <= fetch.request.num_prompt
        blocks = self._scheduler.blocks.blocks_for(arrival.num_tokens)
        if not fits or blocks != fetch.num_blocks or max(tokens, default=0) >= self._vocabulary:
            raise TransferError(
                f"KV of {arrival.num_tokens} tokens and outputs {tokens[:8]} do not belong to "
                f"a prompt of {fetch.request.num_prompt}"
            )

    def _fall_back(self, request: Request, error: TransferError) -> None:
        """The request computes its KV itself, from scratch."""
        logger.warning(
            "request %s: the KV could not be fetched and is computed here: %s",
            *request.key[:1],
            error,
        )
        self.failed += 1
        self._connector.meter.failed(error.code)
        for queue in (self._scheduler.loading, self._scheduler.remote):
            if request in queue:
                queue.remove(request)
        request.num_cached, request.received = None, False
        self._scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Stop loading a request's KV, and remove it; blocks that may still be written to follow
        when they are free."""
        fetch = self._fetches.pop(request.key, None)
        if fetch is not None:
            fetch.load.cancel()
            self._retire(fetch.load, request)
        self._scheduler.finish(request)

    def _settle(self) -> None:
        for load, blocks in list(self._quarantine):
            if load.settled:
                self._quarantine.remove((load, blocks))
                self._scheduler.blocks.release(blocks)

    def owned_blocks(self) -> Sequence[list[int]]:
        return [*self.offers.owned_blocks(), *(blocks for _, blocks in self._quarantine)]
