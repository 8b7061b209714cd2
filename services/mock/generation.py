"""Generate requests of a mock engine: admitted, run step by step, answered, handed over."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from protocol.errors import InvalidRequest, TriptychError, error_info
from protocol.keys import BlockKeyChain, root_key
from protocol.refs import KVRef, has_remote_prefill
from protocol.types import GenerateRequest, RequestOutput
from services.mock.answers import draw, finish_of, logprobs_of
from services.mock.checks import check_fits, check_request
from services.mock.events import EventLog
from services.mock.loads import KVLoads
from services.mock.media import Media
from services.mock.offers import OfferBody, Offers, kv_ref
from services.mock.request import Choice, Request, Status, choices_of
from services.mock.scheduler import Batch, Scheduler
from services.mock.settings import EngineSettings
from services.mock.tokens import prompt_digest, seed_of


class Generation:
    """Everything about generate requests but the passing of time."""

    def __init__(
        self,
        settings: EngineSettings,
        scheduler: Scheduler,
        offers: Offers,
        loads: KVLoads,
        media: Media,
        events: EventLog,
    ) -> None:
        self.settings = settings
        self.scheduler = scheduler
        self.blocks = scheduler.blocks
        self.offers = offers
        self.loads = loads
        self.media = media
        self.counters = {"prompt_tokens": 0, "generation_tokens": 0, "cached_tokens": 0, "steps": 0}
        self._events = events
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._root = root_key(model=settings.model, revision=settings.revision)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, source: GenerateRequest, local: Collection[str], now: float) -> Request:
        """Queue a request; `InvalidRequest` if it cannot run here."""
        if source.request_id in self._requests:
            raise InvalidRequest(f"request id '{source.request_id}' is in use", param="request_id")
        check_request(source, self.settings)
        params = source.kv_transfer_params
        remote = KVRef.from_params(params) if params and has_remote_prefill(params) else None
        root = self._root
        if source.cache_salt:
            names = (self.settings.model, self.settings.revision)
            root = root_key(model=names[0], revision=names[1], cache_salt=source.cache_salt)
        self._arrivals += 1
        request = Request(
            source=source,
            arrival=self._arrivals,
            digest=prompt_digest(source.token_ids, source.mm_items),
            seed=seed_of(source.sampling),
            keys=BlockKeyChain(root, self.settings.block_size, source.mm_items),
            choices=choices_of(source),
            remote=remote,
        )
        check_fits(request, self.settings)
        self._requests[source.request_id] = request
        if request.hands_over:
            self.offers.growing.add(source.request_id)
        self.scheduler.add(request)
        if remote is not None:
            self.loads.keep(now)
        if remote is None and source.mm_items:
            self.media.want(request, local, now)
        return request

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Forget requests, or one choice of them, and what is held for others on their behalf."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None and index is not None:
                self._end_choices(request, {index})
            elif request is not None:
                self.drop(request)
            if index is None:
                self.offers.release(request_id)

    def drop(self, request: Request) -> None:
        """Forget a request at once."""
        self._requests.pop(request.request_id, None)
        self.loads.abort(request)
        self.media.forget(request)
        self.scheduler.remove(request)
        self.blocks.release(request.holding)
        self.offers.stop_growing(request.request_id)

    def fail(self, request: Request, error: TriptychError) -> list[RequestOutput]:
        """Drop a request and say why; nothing if it is gone already."""
        if self._requests.get(request.request_id) is not request:
            return []
        self.drop(request)
        info = error_info(error)
        return [RequestOutput(request.request_id, finish_reason="error", error=info)]

    def find(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def settle(self, now: float) -> list[RequestOutput]:
        """What loads that have ended mean for their requests."""
        outputs: list[RequestOutput] = []
        for request, error in self.loads.failed:
            if self.settings.fail_on_kv_error:
                outputs += self.fail(request, error)
            elif request.source.mm_items:
                self.media.want(request, (), now)
        self.loads.failed.clear()
        for request, error in self.media.failed:
            outputs += self.fail(request, error)
        self.media.failed.clear()
        for request, offer in self.loads.arrived:
            outputs += self._arrived(request, offer, now)
        self.loads.arrived.clear()
        for request in self.scheduler.preempted:
            self.offers.stop_growing(request.request_id)
            if request.source.mm_items:
                self.media.want(request, (), now)
        self.scheduler.preempted.clear()
        return outputs

    def _arrived(self, request: Request, offer: OfferBody, now: float) -> list[RequestOutput]:
        """KV is here; the tokens that came with it are put out as if they were drawn here."""
        if request.source.mm_items:
            request.ready.update(item.mm_hash for item in request.source.mm_items)
        adopted = {choice.index for choice in request.choices} == set(offer.outputs)
        if request.adopts and adopted:
            request.computed = offer.num_tokens
            given = {index: list(tokens) for index, tokens in offer.outputs.items()}
            return self._gain(request, given, now)
        self._name_blocks(request)
        return []

    def run(self, batch: Batch, now: float) -> list[RequestOutput]:
        """The end of a step: what its requests have gained."""
        self.counters["steps"] += 1
        outputs: list[RequestOutput] = []
        for request, count in batch.chunks:
            if request.status is Status.RUNNING:
                request.computed += count
                if request.computed == request.total:
                    outputs += self._sample(request, 1, now)
                else:
                    self._name_blocks(request)
        for request, count in batch.decoding:
            if request.status is Status.RUNNING:
                request.computed = request.total
                outputs += self._sample(request, count, now)
        return outputs

    def _sample(self, request: Request, count: int, now: float) -> list[RequestOutput]:
        vocabulary = self.settings.vocabulary
        drawn = {c.index: draw(vocabulary, request, c, count) for c in request.choices}
        return self._gain(request, drawn, now)

    def _gain(
        self, request: Request, gained: dict[int, list[int]], now: float
    ) -> list[RequestOutput]:
        """Give every choice its tokens; those that end leave, and with the last the request."""
        outputs: list[RequestOutput] = []
        for choice in request.choices:
            output = self._output(request, choice, gained[choice.index])
            outputs.append(output)
            request.computed += max(0, len(output.token_ids) - 1)
        self._name_blocks(request)
        handed = request.hands_over and any(o.finish_reason == "length" for o in outputs)
        if handed:
            self._hand_over(request, outputs, now)
        self._end_choices(request, {o.index for o in outputs if o.finish_reason is not None})
        return outputs

    def _output(self, request: Request, choice: Choice, tokens: list[int]) -> RequestOutput:
        first = len(choice.tokens) == choice.given
        reason, stop, count = finish_of(request, choice, tokens, self.settings.eos_token_id)
        tokens = tokens[:count]
        output = RequestOutput(
            request.request_id, choice.index, tokens, logprobs_of(request, tokens), reason, stop
        )
        if first:
            output.cached_tokens = request.cached or 0
            if choice is request.choices[0]:
                self.counters["prompt_tokens"] += request.num_prompt
                self.counters["cached_tokens"] += output.cached_tokens
        choice.tokens += tokens
        self.counters["generation_tokens"] += len(tokens)
        return output

    def _end_choices(self, request: Request, indices: Collection[int]) -> None:
        for choice in [c for c in request.choices if c.index in indices]:
            if len(request.choices) == 1:
                self.drop(request)
                return
            decoding = request.total - request.computed <= len(request.choices)
            request.choices.remove(choice)
            if decoding:
                request.computed -= max(0, len(choice.tokens) - 1)
            else:
                request.computed = min(request.computed, request.num_prompt - 1)

    def _name_blocks(self, request: Request) -> None:
        """Blocks that are complete get their keys, and can be reused from here on."""
        size = self.settings.block_size
        line = request.num_prompt if request.source.sampling.n > 1 else request.computed
        full = min(line, request.computed) // size
        if full <= request.stored or not self.blocks.prefix_caching:
            return
        tokens = request.line()
        keys, first = request.keys.extend(tokens)[:full], request.stored
        request.stored = full
        named = [self.blocks.name(request.holding, key) for key in keys[first:]]
        if any(named):
            self._events.stored(keys, first, tokens, request.source)

    def _hand_over(self, request: Request, outputs: list[RequestOutput], now: float) -> None:
        """Hold the prompt's KV for another worker; the first choice that goes on says where."""
        kept = self.blocks.split(request.holding, self.blocks.blocks_for(request.num_prompt))
        tokens = {output.index: output.token_ids for output in outputs}
        offer = self.offers.publish(
            request.request_id, request.num_prompt, request.digest, tokens, kept, now
        )
        going_on = next(o for o in outputs if o.finish_reason == "length")
        going_on.kv_transfer_params = kv_ref(self.settings, offer).to_params()

    def check_integrity(self) -> list[str]:
        """Compare every book with every other; [] if all agree."""
        queued = self.scheduler.all_requests()
        holdings = [*(request.holding for request in queued), *self.offers.holdings()]
        problems = self.blocks.check_integrity(holdings)
        problems += self.media.check_integrity(list(self._requests.values()))
        known = set(self._requests)
        names = {request.request_id for request in queued}
        problems += [f"request {name} is in no queue" for name in known - names]
        problems += [f"request {name} is queued but unknown" for name in names - known]
        problems += [
            f"request {name} is growing but unknown" for name in self.offers.growing - known
        ]
        return problems
