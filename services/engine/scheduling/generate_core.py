"""The engine: requests in, tokens and embeddings out, one step at a time. No I/O of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from connectors.kv.base import KVArrival
from protocol.errors import DeadlineExceeded, InvalidRequest, TriptychError, error_info
from protocol.refs import KVRef, has_remote_prefill
from protocol.types import GenerateRequest, RequestOutput
from services.engine.config import EngineConfig
from services.engine.model.language import LanguageModel
from services.engine.model.runner import Runner
from services.engine.sampling.grammar import Grammars
from services.engine.sampling.sampler import Sampled
from services.engine.scheduling.admission_checks import Intake
from services.engine.scheduling.rates import RateMeter, work_of
from services.engine.scheduling.request import Request, choices_of, sibling_of
from services.engine.scheduling.scheduler import Chunk, Scheduler
from services.engine.transfers.kv_fetches import Transfers


class GenerateCore:
    """Schedules, runs and accounts for generate requests."""

    def __init__(
        self,
        config: EngineConfig,
        model: LanguageModel,
        scheduler: Scheduler,
        runner: Runner,
        transfers: Transfers,
        grammars: Grammars,
        meter: RateMeter,
        meanwhile: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`meanwhile` is entered while the model computes."""
        self._config = config
        self._meter = meter
        self.scheduler = scheduler
        self.transfers = transfers
        self._runner = runner
        self._meanwhile = meanwhile
        self._grammars = grammars
        self._intake = Intake(config, model, scheduler, grammars, shares_kv=transfers.shares)
        self._requests: dict[str, dict[int, Request]] = {}
        self._progressed = False
        self._in_step: list[str] = []
        self.counters = {"prompt_tokens": 0, "generation_tokens": 0, "cached_tokens": 0, "steps": 0}

    def __len__(self) -> int:
        return sum(len(choices) for choices in self._requests.values())

    def add(self, source: GenerateRequest) -> list[RequestOutput]:
        """Queue a request; returns outputs only if it is refused."""
        try:
            if source.request_id in self._requests:
                name = source.request_id
                raise InvalidRequest(f"request id '{name}' is in use", param="request_id")
            request = self._intake.request(source)
            ref = _remote(source)
        except TriptychError as error:
            return [
                RequestOutput(source.request_id, finish_reason="error", error=error_info(error))
            ]
        self._register(request)
        if ref is not None:
            self.transfers.subscribe(request, ref)
        else:
            self.scheduler.add(request)
            self.scheduler.embeddings.pin(request)
        if request.hands_over:
            self.transfers.offers.open(request)
        return []

    def _register(self, request: Request) -> None:
        self._requests.setdefault(request.source.request_id, {})[request.index] = request

    def _unregister(self, request: Request) -> None:
        choices = self._requests[request.source.request_id]
        del choices[request.index]
        if not choices:
            del self._requests[request.source.request_id]

    def _alive(self) -> list[Request]:
        return [request for choices in self._requests.values() for request in choices.values()]

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> None:
        """Forget requests at once; blocks of a transfer under way follow when it has settled."""
        for request_id in request_ids:
            for request in list(self._requests.get(request_id, {}).values()):
                if index in (None, request.index):
                    self._drop(request)
            if index is None:
                self.transfers.offers.withdraw(request_id)

    def _drop(self, request: Request) -> None:
        self._unregister(request)
        self.transfers.offers.stop_growing(request.source.request_id, "the request was aborted")
        self.transfers.abort(request)

    def close(self) -> None:
        """Give every request up, and all that is on its way to or from here for one: peers that
        hold something for them are told."""
        self.abort(list(self._requests))
        self.transfers.offers.close()
        self._grammars.close()

    def step(self) -> list[RequestOutput]:
        """Advance transfers, then run one batch; returns what the requests gained."""
        self._in_step = list(self._requests)
        outputs = self._advance()
        begun = time.perf_counter()
        chunks = self.scheduler.schedule()
        self._tell_of_preemptions()
        if chunks:
            self.counters["steps"] += 1
            work = work_of(chunks)
            outputs += self._run([self._with_siblings(chunk) for chunk in chunks])
            self._meter.stepped(work, time.perf_counter() - begun)
        self._progressed = bool(chunks)
        return outputs

    def _tell_of_preemptions(self) -> None:
        for request in self.scheduler.preempted:
            self.transfers.offers.restart(request.source.request_id)
        self.scheduler.preempted.clear()

    def _run(self, chunks: list[Chunk]) -> list[RequestOutput]:
        with self._meanwhile():
            sampled = self._runner.run(chunks)
        failed = {one.request.key for one in sampled if one.failure}
        for chunk in chunks:
            if chunk.request.key in failed:
                continue  # its blocks hold nothing that another request may use
            self.scheduler.computed(chunk)
            if chunk.request.hands_over:
                self.transfers.offers.grown(chunk.request)
        gained = [
            self._fail(one.request, one.failure) if one.failure else self._gained(one)
            for one in sampled
        ]
        self.transfers.offers.hand_over(gained)
        return gained

    @property
    def progressed(self) -> bool:
        """Whether the last step ran anything; if not, requests wait for something to arrive."""
        return self._progressed

    def _advance(self) -> list[RequestOutput]:
        outputs = self._expire()
        for failed, cause in self.transfers.poll():
            outputs.append(self._fail(failed, cause))
        for key, error in self.scheduler.embeddings.poll():
            request = self._requests.get(key[0], {}).get(key[1])
            if request is not None:
                outputs.append(self._fail(request, error))
        for request, arrival in self.transfers.arrived:
            outputs += self._adopt(request, arrival)
        self.transfers.arrived.clear()
        self.transfers.begin()
        return outputs

    def _adopt(self, request: Request, arrival: KVArrival) -> list[RequestOutput]:
        """Take over the tokens that came with a request's KV, as if they were sampled here.

        Only where the request was placed here before they were known; whoever asked later knows
        them, and says so by `emitted`.
        """
        if not request.adopts or set(arrival.outputs) != {request.index, *request.siblings}:
            return []
        request.num_computed = arrival.num_tokens
        choices = [request, *self._siblings(request)]
        return [
            self._gained(Sampled(choice, token))
            for choice in choices
            for token in arrival.outputs[choice.index]
        ]

    def _expire(self) -> list[RequestOutput]:
        now = time.monotonic()
        late = [r for r in self._alive() if r.deadline is not None and r.deadline <= now]
        return [
            self._fail(request, DeadlineExceeded("the request's deadline has passed"))
            for request in late
        ]

    def _fail(self, request: Request, error: TriptychError) -> RequestOutput:
        self._drop(request)
        return RequestOutput(
            request.source.request_id, request.index, finish_reason="error", error=error_info(error)
        )

    def fail_all(self, error: TriptychError) -> list[RequestOutput]:
        """After a step that raised: all requests end, also those whose last outputs it has lost."""
        self.abort(list(self._requests))
        self.transfers.arrived.clear()
        self.transfers.offers.hand_over([])
        info = error_info(error)
        return [RequestOutput(name, finish_reason="error", error=info) for name in self._in_step]

    def _with_siblings(self, chunk: Chunk) -> Chunk:
        """Once a prompt is complete its other choices come to life.

        Those with nothing emitted draw their first token from the same logits.
        """
        request = chunk.request
        if not request.siblings or chunk.end < request.num_prompt:
            return chunk
        siblings = self._siblings(request)
        if request.num_output or not chunk.samplers:
            return chunk
        return Chunk(request, chunk.start, chunk.count, (request, *siblings))

    def _siblings(self, request: Request) -> list[Request]:
        """The other choices of a request, from here on requests of their own."""
        siblings = [sibling_of(request, index) for index in request.siblings]
        request.siblings = ()
        for sibling in siblings:
            self._register(sibling)
            self.scheduler.add(sibling)
        return siblings

    def _gained(self, sampled: Sampled) -> RequestOutput:
        request, token = sampled.request, sampled.token_id
        first = request.num_output == len(request.source.emitted.get(request.index, ()))
        request.tokens.append(token)
        output = RequestOutput(
            request.source.request_id,
            request.index,
            [token],
            [sampled.logprobs] if sampled.logprobs else None,
        )
        if first:
            self._count_prompt(request, output)
        self.counters["generation_tokens"] += 1
        self._finish_if_done(request, token, output)
        return output

    def _count_prompt(self, request: Request, output: RequestOutput) -> None:
        output.cached_tokens = request.num_cached or 0
        if request.index == choices_of(request.source)[0]:
            self.counters["prompt_tokens"] += request.num_prompt
            self.counters["cached_tokens"] += output.cached_tokens

    def _finish_if_done(self, request: Request, token: int, output: RequestOutput) -> None:
        sampling = request.sampling
        if request.num_output >= sampling.min_tokens:
            if token in self._config.eos_token_ids and not sampling.ignore_eos:
                output.finish_reason = "stop"
            elif token in sampling.stop_token_ids:
                output.finish_reason, output.stop_reason = "stop", token
        if output.finish_reason is None and (
            request.num_output >= sampling.max_tokens or request.hands_over
        ):
            output.finish_reason = "length"
        if output.finish_reason is not None:
            self._finish(request, output)

    def _finish(self, request: Request, output: RequestOutput) -> None:
        self._unregister(request)
        if request.hands_over and request.blocks:
            self.transfers.offers.hold(request)
        else:
            self.scheduler.finish(request)

    def check_integrity(self) -> list[str]:
        """Compare every book with every other; [] if all agree."""
        owners = [r.blocks for r in self.scheduler.all_requests()]
        problems = self.scheduler.blocks.check_integrity([*owners, *self.transfers.owned_blocks()])
        known, queued = {r.key for r in self._alive()}, self.scheduler.keys()
        problems += self.scheduler.embeddings.check_integrity(known)
        problems += [f"request {key} is in no queue" for key in known - queued]
        problems += [f"request {key} is queued but unknown" for key in queued - known]
        return problems


def _remote(source: GenerateRequest) -> KVRef | None:
    params = source.kv_transfer_params
    return KVRef.from_params(params) if params and has_remote_prefill(params) else None
