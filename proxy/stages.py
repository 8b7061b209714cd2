"""One attempt of a request: encode what is missing, prefill beside it, decode."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.errors import TriptychError, UpstreamError, from_info
from protocol.generate import ABORT_PATH, GENERATE_PATH, GenerateAnswer, encode_generate
from protocol.types import GenerateRequest, MMItem, RequestOutput
from proxy.client import Patience, UpstreamClient
from proxy.encode_stage import EncodeStage
from proxy.instance import Instance
from proxy.journey import Journey, another_may_help, at_fault, lost_embeddings
from proxy.metrics import ProxyMetrics
from proxy.placing import Placing, Plan
from proxy.steps import Ahead, first, fresh, outputs_of, uncounted, unless_failed

Steps = AsyncGenerator[list[RequestOutput], None]
_JSON = {"content-type": "application/json"}
_ABORT_S = 2.0


@dataclass(frozen=True)
class StageTimes:
    """Seconds: a whole prefill call, to a stream's first event, between events."""

    prefill_s: float = 120.0
    first_s: float = 120.0
    stall_s: float = 60.0


@dataclass
class Attempt:
    """`wanted` is what is left of the journey, with its places; `failed` are workers at fault."""

    journey: Journey
    wanted: GenerateRequest
    plan: Plan
    failed: list[Instance] = field(default_factory=list)

    @property
    def items(self) -> list[MMItem]:
        """Those whose bytes are at hand."""
        return [i for i in self.wanted.mm_items if i.mm_hash in self.journey.media]


class Stages:
    """Runs attempts; every call to a worker is counted, bounded in time and charged to it."""

    def __init__(
        self,
        client: UpstreamClient,
        encode_stage: EncodeStage,
        placing: Placing,
        metrics: ProxyMetrics,
        times: StageTimes,
    ) -> None:
        self._client = client
        self.encode_stage = encode_stage
        self._placing = placing
        self._metrics = metrics
        self._times = times
        self._releases: set[asyncio.Task[None]] = set()

    def attempt(self, journey: Journey, wanted: GenerateRequest, plan: Plan) -> Attempt:
        """With the places of embeddings, which prefill asks while they are made."""
        attempt = Attempt(journey, wanted, plan)
        if items := attempt.items:
            places = self.encode_stage.endpoints(items, plan)
            params = {**(wanted.ec_transfer_params or {}), **places}
            attempt.wanted = msgspec.structs.replace(wanted, ec_transfer_params=params or None)
        return attempt

    async def run(self, attempt: Attempt) -> Steps:
        """Outputs that the client has not had. Closing the generator ends every stage."""
        plan = attempt.plan
        stages = (
            self._aggregated(attempt, plan.decode)
            if plan.prefill is None
            else self._split(attempt, plan.prefill, plan.decode)
        )
        async with contextlib.aclosing(stages):
            async for outputs in stages:
                yield outputs

    async def _aggregated(self, attempt: Attempt, worker: Instance) -> Steps:
        """E+PD: one worker prefills and decodes, and waits inside for embeddings."""
        async with (
            self._encoding(attempt) as encoding,
            contextlib.aclosing(self._stream(attempt, worker, attempt.wanted)) as steps,
        ):
            while outputs := await unless_failed(anext(steps, []), encoding):
                yield outputs

    async def _split(self, attempt: Attempt, prefill: Instance, decode: Instance) -> Steps:
        """E+P+D: the first token comes from prefill, the rest from decode."""
        taken = False  # whether decode has done with the KV that prefill holds
        async with contextlib.AsyncExitStack() as stack:
            ahead = await self._placed_ahead(stack, attempt, prefill, decode)
            try:
                async with self._encoding(attempt) as encoding:
                    answer = await unless_failed(self._prefill(attempt, prefill), encoding)
                self._placing.stage_over(attempt.wanted)
                outputs = self._firsts(attempt, answer)
                if outputs:
                    yield outputs
                if attempt.journey.complete:
                    return
                rest = self._rest(attempt, decode, ahead, answer.kv_transfer_params)
                async with contextlib.aclosing(rest):
                    async for later in rest:
                        yield later
                taken = True
            finally:
                if not taken:
                    self._release(prefill, attempt.wanted.request_id)

    def _firsts(self, attempt: Attempt, answer: GenerateAnswer) -> list[RequestOutput]:
        """Prefill's first tokens, none if the client had them from an earlier attempt."""
        if attempt.wanted.emitted:
            return []
        return [first(output, attempt.wanted) for output in outputs_of(answer)]

    async def _placed_ahead(
        self,
        stack: contextlib.AsyncExitStack,
        attempt: Attempt,
        prefill: Instance,
        decode: Instance,
    ) -> Ahead | None:
        """Decode placed before prefill has begun, where prefill can be asked for growing KV: it
        reserves its blocks and fetches while prefill computes."""
        if prefill.kv_endpoint is None:
            return None
        params = {**prefill.kv_endpoint, "remote_request_id": attempt.wanted.request_id}
        wanted = msgspec.structs.replace(attempt.wanted, kv_transfer_params=params)
        return await stack.enter_async_context(Ahead(self._stream(attempt, decode, wanted)))

    async def _rest(
        self,
        attempt: Attempt,
        decode: Instance,
        ahead: Ahead | None,
        handed: dict[str, Any] | None,
    ) -> Steps:
        """What decode adds to what the client has."""
        emitted = attempt.journey.wanted().emitted
        if ahead is None:
            wanted = msgspec.structs.replace(
                attempt.wanted, emitted=emitted, kv_transfer_params=handed
            )
            async with contextlib.aclosing(self._stream(attempt, decode, wanted)) as steps:
                async for outputs in steps:
                    yield uncounted(outputs)
            return
        had = attempt.wanted.emitted
        known = {i: len(tokens) - len(had.get(i, ())) for i, tokens in emitted.items()}
        while (step := await ahead.next()) is not None:
            if later := fresh(step, known):
                yield later

    async def _prefill(self, attempt: Attempt, worker: Instance) -> GenerateAnswer:
        """The prompt alone: what has been emitted is decode's to take in."""
        wanted = msgspec.structs.replace(
            attempt.wanted,
            kv_transfer_params={"do_remote_decode": True},
            emitted={},
            deadline_s=attempt.journey.left_s,
        )
        body = encode_generate(wanted, stream=False)
        patience = self._patience(attempt, worker, self._times.prefill_s)
        with self._asking(attempt, worker):
            data = await self._client.post(worker.url + GENERATE_PATH, body, _JSON, patience)
            return _of_prefill(_parsed(data, worker, wanted), worker)

    async def _stream(self, attempt: Attempt, worker: Instance, wanted: GenerateRequest) -> Steps:
        wanted = msgspec.structs.replace(wanted, deadline_s=attempt.journey.left_s)
        body = encode_generate(wanted, stream=True)
        patience = self._patience(attempt, worker, self._times.first_s)
        with self._asking(attempt, worker):
            url = worker.url + GENERATE_PATH
            events = self._client.stream(url, body, _JSON, patience)
            async with contextlib.aclosing(events):
                async for event in events:
                    outputs = outputs_of(_parsed(event, worker, wanted))
                    if outputs:
                        yield outputs

    def _patience(self, attempt: Attempt, worker: Instance, answer_s: float) -> Patience:
        deadline, stall_s = attempt.journey.deadline, self._times.stall_s
        return Patience(deadline, answer_s, stall_s, lambda: not worker.lost)

    @contextlib.contextmanager
    def _asking(self, attempt: Attempt, worker: Instance) -> Iterator[None]:
        """A call to a worker, its success or failure noted on its breaker."""
        worker.breaker.started(time.monotonic())
        with worker.serving():
            try:
                yield
            except TriptychError as error:
                self._note(attempt, worker, error)
                raise
        worker.breaker.succeeded()

    def _note(self, attempt: Attempt, worker: Instance, error: TriptychError) -> None:
        if not another_may_help(error) or lost_embeddings(error):
            return
        self._metrics.upstream_failures.labels(worker.role, error.code).inc()
        attempt.journey.avoid.append(worker)
        if at_fault(error):
            attempt.failed.append(worker)
            worker.suspect = True
            worker.breaker.failed(time.monotonic())

    @contextlib.asynccontextmanager
    async def _encoding(self, attempt: Attempt) -> AsyncGenerator[asyncio.Task[Any], None]:
        """The encode stage beside what is done inside; ended if that fails or is left.

        Once prefill has what it needs, the encoder's answer may still be on its way: it is left to
        arrive, since the next request with the same picture builds on it.
        """
        task = asyncio.create_task(self._encode(attempt))
        try:
            yield task
        except BaseException as error:
            if isinstance(error, TriptychError) and lost_embeddings(error):
                self.encode_stage.forget(attempt.items)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TriptychError):
                await task
            raise
        self.encode_stage.let_finish(task)

    async def _encode(self, attempt: Attempt) -> None:
        def done(mm_hash: str) -> None:
            self._placing.stage_over(attempt.wanted, mm_hash)

        journey = attempt.journey
        await self.encode_stage.run(attempt.wanted, journey.media, attempt.plan, done)

    def _release(self, worker: Instance, request_id: str) -> None:
        """Tell prefill that nobody will fetch this attempt's KV; nobody waits for that."""
        task = asyncio.create_task(self._abort(worker, request_id))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _abort(self, worker: Instance, request_id: str) -> None:
        body = msgspec.json.encode({"request_ids": [request_id]})
        with contextlib.suppress(TriptychError):
            await self._client.post(worker.url + ABORT_PATH, body, _JSON, Patience.of(_ABORT_S))


def _parsed(data: bytes, worker: Instance, wanted: GenerateRequest) -> GenerateAnswer:
    try:
        answer = msgspec.json.decode(data, type=GenerateAnswer)
    except msgspec.DecodeError:
        raise UpstreamError(f"{worker.url} answered with nonsense") from None
    if answer.error is not None:
        raise from_info(answer.error)
    if answer.request_id != wanted.request_id:
        raise UpstreamError(f"{worker.url} answered another request")
    return answer


def _of_prefill(answer: GenerateAnswer, worker: Instance) -> GenerateAnswer:
    """Checked: one token of each choice at the most, and this request's own KV."""
    if any(len(choice.token_ids) > 1 for choice in answer.choices):
        raise UpstreamError(f"{worker.url} prefilled and went on")
    name = (answer.kv_transfer_params or {}).get("remote_request_id", answer.request_id)
    if name != answer.request_id:
        raise UpstreamError(f"{worker.url} handed over another request's KV")
    return answer
