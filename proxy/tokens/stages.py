"""One attempt of a request: encode what is missing, prefill beside it, decode."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

import msgspec

from protocol.errors import EmbeddingLost, TriptychError, UpstreamError
from protocol.types import GenerateRequest, RequestOutput
from proxy.fleet.worker import Instance
from proxy.placement.planner import Planner
from proxy.tokens.encode_stage import EncodeStage
from proxy.tokens.request_state import unscored
from proxy.tokens.worker_calls import Attempt, Steps, WorkerCalls
from services.http.tasks import ended

_ENGINE = "remote_engine_id"
_T = TypeVar("_T")


class ReadAhead:
    """An iterator whose first step is under way before anyone waits for it; a context manager that
    closes it. `steps` has those after the first."""

    def __init__(self, steps: AsyncGenerator[list[RequestOutput], None]) -> None:
        self.steps = steps
        self._first: asyncio.Future[list[RequestOutput] | None] | None = None

    async def __aenter__(self) -> ReadAhead:
        self._first = asyncio.ensure_future(anext(self.steps, None))
        return self

    async def first(self) -> list[RequestOutput] | None:
        """The first step, None if there is none."""
        assert self._first is not None
        # Taken out: a cancelled wait cancels the step too, so that nothing is left to end.
        first, self._first = self._first, None
        return await first

    async def __aexit__(self, *_: object) -> None:
        if self._first is not None:
            await ended(self._first)
        await self.steps.aclose()


class TokensStages:
    """Runs attempts, stage beside stage."""

    def __init__(self, calls: WorkerCalls, encode_stage: EncodeStage, planner: Planner) -> None:
        self._calls = calls
        self.encode_stage = encode_stage
        self._planner = planner

    def _name_places(self, attempt: Attempt) -> None:
        """Add the places of embeddings, which prefill asks while they are made."""
        if items := attempt.items:
            wanted = attempt.wanted
            places = self.encode_stage.endpoints(items, attempt.plan)
            params = {**(wanted.ec_transfer_params or {}), **places}
            attempt.wanted = msgspec.structs.replace(wanted, ec_transfer_params=params or None)

    def run(self, attempt: Attempt) -> Steps:
        """Outputs that the client has not had. Closing the generator ends every stage."""
        self._name_places(attempt)
        plan = attempt.plan
        if attempt.wanted.pooling is not None:
            return self._pooled(attempt, plan.prefill or plan.decode)
        if plan.prefill is None:
            return self._aggregated(attempt, plan.decode)
        return self._split(attempt, plan.prefill, plan.decode)

    async def _aggregated(self, attempt: Attempt, worker: Instance) -> Steps:
        """E+PD: one worker prefills and decodes, and waits inside for embeddings."""
        steps = self._calls.stream(attempt, worker, attempt.wanted)
        async with contextlib.aclosing(steps):
            async with self._encoding(attempt) as encoding:
                # With its first output the worker has all embeddings: the encode stage has ended.
                outputs = await unless_failed(anext(steps, []), encoding)
            while outputs:
                yield outputs
                outputs = await anext(steps, [])

    async def _pooled(self, attempt: Attempt, worker: Instance) -> Steps:
        """E+P: the answer is what one worker makes of the prompt."""
        async with self._encoding(attempt) as encoding:
            outputs = await unless_failed(self._calls.pooled(attempt, worker), encoding)
        yield outputs

    async def _split(self, attempt: Attempt, prefill: Instance, decode: Instance) -> Steps:
        """E+P+D: the first token comes from prefill, the rest from decode."""
        # Held until prefill says otherwise: a call that breaks may have left KV there all the same.
        held, offered = True, False  # KV by prefill; to decode where that asked for it
        async with contextlib.AsyncExitStack() as stack:
            ahead = self._ahead(attempt, prefill, decode)
            if ahead is not None:
                await stack.enter_async_context(ahead)
            try:
                async with self._encoding(attempt) as encoding:
                    outputs, handed = await unless_failed(
                        self._calls.prefill(attempt, prefill), encoding
                    )
                held = handed is not None
                offered = ahead is None or self._same_engine(attempt, prefill, handed or {})
                self._planner.prefilled(attempt.wanted.request_id, attempt.prefill_s)
                if outputs and not (attempt.wanted.emitted or attempt.wanted.sampling.beam_width):
                    yield [_first(output, attempt.wanted) for output in outputs]
                if attempt.state.complete:
                    return
                rest = self._rest(attempt, decode, ahead, handed)
                async with contextlib.aclosing(rest):
                    async for later in rest:
                        yield later
            finally:
                # Decode frees prefill's KV by fetching it; where it never will, prefill is told.
                if held and not (offered and attempt.fetched):
                    self._calls.release(prefill, attempt.wanted.request_id)

    def _same_engine(self, attempt: Attempt, prefill: Instance, handed: dict[str, Any]) -> bool:
        """Whether decode has asked the engine that prefilled. If not, prefill's process has
        restarted, unseen by any probe: decode computes the prompt itself."""
        if handed.get(_ENGINE, attempt.asked_at) == attempt.asked_at:
            return True
        prefill.suspect, prefill.known = True, False
        return False

    def _ahead(self, attempt: Attempt, prefill: Instance, decode: Instance) -> ReadAhead | None:
        """Decode placed before prefill has begun, where prefill can be asked for growing KV: it
        reserves its blocks and fetches while prefill computes, and says nothing before."""
        if prefill.kv_endpoint is None:
            return None
        attempt.asked_at = str(prefill.kv_endpoint.get(_ENGINE, ""))
        params = {**prefill.kv_endpoint, "remote_request_id": attempt.wanted.request_id}
        wanted = msgspec.structs.replace(unscored(attempt.wanted), kv_transfer_params=params)
        return ReadAhead(self._calls.stream(attempt, decode, wanted, ahead=True))

    async def _rest(
        self,
        attempt: Attempt,
        decode: Instance,
        ahead: ReadAhead | None,
        handed: dict[str, Any] | None,
    ) -> Steps:
        """What decode adds to what the client has."""
        emitted = attempt.state.wanted().emitted
        if attempt.wanted.sampling.beam_width:  # of prefill's first tokens the client has none
            emitted = {index: [] for index in range(attempt.wanted.sampling.n)}
        if ahead is None:
            wanted = msgspec.structs.replace(
                unscored(attempt.wanted), emitted=emitted, kv_transfer_params=handed
            )
            steps = self._calls.stream(attempt, decode, wanted)
            async with contextlib.aclosing(steps):
                async for outputs in steps:
                    yield _uncounted(outputs)
            return
        had = attempt.wanted.emitted
        known = {i: tokens[len(had.get(i, ())) :] for i, tokens in emitted.items()}
        step = await ahead.first()
        while step is not None:
            if later := _fresh(step, known):
                yield later
            step = await anext(ahead.steps, None)

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
            if isinstance(error, TriptychError) and error.code == EmbeddingLost.code:
                self.encode_stage.forget(attempt.items, attempt.plan)
            await ended(task)
            raise
        self.encode_stage.let_finish(task)

    async def _encode(self, attempt: Attempt) -> None:
        state, wanted = attempt.state, attempt.wanted
        if all(item.mm_hash in attempt.plan.held for item in attempt.items):
            return  # also if there are none
        with state.record.during("encode"):
            done = functools.partial(self._planner.encoded, wanted.request_id)
            await self.encode_stage.run(wanted, state.media, attempt.plan, state, done)


async def unless_failed(work: Awaitable[_T], encoding: asyncio.Task[Any]) -> _T:
    """The result of `work`; a failure of the encode stage ends it at once with that failure."""
    if encoding.done():
        encoding.result()
        return await work
    task = asyncio.ensure_future(work)
    try:
        waiting: set[asyncio.Future[Any]] = {task, encoding}
        while not task.done():
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if encoding.done():
                encoding.result()
                # Without the encode stage: it is done, and would end each further wait at once.
                waiting = {task}
        return task.result()
    finally:
        if not task.done():
            await ended(task)
        elif not task.cancelled():
            task.exception()  # both may fail in one turn: asyncio would log what no one has seen


def _fresh(outputs: list[RequestOutput], known: dict[int, list[int]]) -> list[RequestOutput]:
    """`outputs` without the tokens that the client has from prefill; `known` has, per choice that
    goes on, those that are still to come. `UpstreamError` if others come in their place."""
    rest = []
    for output in _uncounted(outputs):
        if output.index not in known:
            continue
        again = known[output.index]
        skip = min(len(again), len(output.token_ids))
        # As of decode that lost the KV and drew anew: what follows would not fit what was shown.
        if output.token_ids[:skip] != again[:skip]:
            raise UpstreamError("decode does not go on from the tokens that the client has")
        known[output.index] = again[skip:]
        output.token_ids = output.token_ids[skip:]
        output.logprobs = output.logprobs[skip:] if output.logprobs is not None else None
        if output.token_ids or output.finish_reason is not None:
            rest.append(output)
    return rest


def _uncounted(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Decode's count of cached tokens is not the prompt's: prefill's is."""
    for output in outputs:
        output.cached_tokens = None
    return outputs


def _first(output: RequestOutput, request: GenerateRequest) -> RequestOutput:
    """Prefill's output as the client sees it: it ends `length` only because prefill hands over."""
    if output.finish_reason == "length" and len(output.token_ids) < request.sampling.max_tokens:
        output.finish_reason = None
    return output
