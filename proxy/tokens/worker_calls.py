"""Calls of one attempt to the workers that prefill and decode."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from protocol.decoding import decoded
from protocol.errors import TriptychError, UpstreamError, from_worker
from protocol.generate import ABORT_PATH, GENERATE_PATH, encode_generate
from protocol.generate_answers import GenerateAnswer
from protocol.request_record import traced
from protocol.types import GenerateRequest, MMItem, RequestOutput
from proxy.dispatch import Dispatch
from proxy.fleet.worker import Instance
from proxy.placement.planner import AttemptEnd, Plan
from proxy.tokens.request_state import TokensRequest
from proxy.upstream.client import UpstreamClient
from proxy.upstream.patience import Patience

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
    """One try of a request by a plan.

    `state`: the request over all its attempts.
    `plan`: the workers of this one.
    `items`: its media whose bytes are at hand.
    `wanted`: what is left of the request, with the places of embeddings.
    `fetched`: decode has said something, so it has done with the KV that prefill held.
    `asked_at`: the engine that decode was told to ask for KV, "" if none.
    `prefill_s`: what the prefill call took.
    `began`: when the decode call began, of `time.monotonic`.
    `first_s`: seconds from there to its first token.
    `elapsed_s`: seconds from there to its last outputs so far.
    `tokens`: how many it has put out.
    """

    state: TokensRequest
    wanted: GenerateRequest
    plan: Plan
    fetched: bool = False
    asked_at: str = ""
    prefill_s: float = 0.0
    began: float = 0.0
    first_s: float = 0.0
    elapsed_s: float = 0.0
    tokens: int = 0
    items: list[MMItem] = field(init=False)

    def __post_init__(self) -> None:
        media = self.state.media
        self.items = [item for item in self.wanted.mm_items if item.mm_hash in media]

    def decoded(self, outputs: list[RequestOutput]) -> None:
        """Decode has said more."""
        self.elapsed_s = time.monotonic() - self.began
        if outputs and not self.fetched:
            self.fetched, self.first_s = True, self.elapsed_s
        self.tokens += sum(len(output.token_ids) for output in outputs)

    def end(self) -> AttemptEnd:
        """What came of it."""
        failed, aborted = self.state.take_blamed(), not self.state.complete
        return AttemptEnd(aborted, failed, self.elapsed_s, self.first_s, self.tokens)


class WorkerCalls:
    """Every call is bounded in time and checked."""

    def __init__(self, client: UpstreamClient, dispatch: Dispatch, times: StageTimes) -> None:
        self._client = client
        self._dispatch = dispatch
        self._times = times

    async def prefill(
        self, attempt: Attempt, worker: Instance
    ) -> tuple[list[RequestOutput], dict[str, Any] | None]:
        """(outputs, KV handles) of the prompt alone: what has been emitted is decode's to take
        in."""
        wanted = msgspec.structs.replace(
            attempt.wanted,
            kv_transfer_params={"do_remote_decode": True},
            emitted={},
            deadline_s=attempt.state.left_s,
        )
        call = self._dispatch.calling(attempt.state, worker, "prefill")
        with call:
            answer = await self._whole(attempt, worker, wanted)
            outputs = self._prefilled(attempt, worker, wanted, answer)
        attempt.prefill_s = call.elapsed_s
        return outputs, answer.kv_transfer_params

    async def pooled(self, attempt: Attempt, worker: Instance) -> list[RequestOutput]:
        """The answer to a request that wants no tokens."""
        wanted = msgspec.structs.replace(attempt.wanted, deadline_s=attempt.state.left_s)
        assert wanted.pooling is not None
        with self._dispatch.calling(attempt.state, worker, "prefill"):
            outputs = _outputs_of(await self._whole(attempt, worker, wanted))
            choices = attempt.state.choices(wanted)
            # The answer comes without tokens.
            choices.most = 0
            choices.take(outputs)
            # Numbers travel as float32.
            size = wanted.pooling.answer_bytes(len(wanted.token_ids))
            if not choices.complete or any(len(one.pooled) != size for one in outputs):
                raise UpstreamError(f"{worker.url} did not answer the vector that was asked for")
        return outputs

    async def _whole(
        self, attempt: Attempt, worker: Instance, wanted: GenerateRequest
    ) -> GenerateAnswer:
        """An answer that is not streamed, within the time of a prefill."""
        body = encode_generate(wanted, stream=False)
        patience = self._patience(attempt, worker, self._times.prefill_s)
        headers = traced(_JSON, attempt.state.record)
        data = await self._client.post(worker.url + GENERATE_PATH, body, headers, patience)
        return _answer_in(data, worker, wanted)

    def _prefilled(
        self, attempt: Attempt, worker: Instance, wanted: GenerateRequest, answer: GenerateAnswer
    ) -> list[RequestOutput]:
        """One token of each choice, or its end; and the KV must be this request's own."""
        outputs = _outputs_of(answer)
        choices = attempt.state.choices(wanted)
        choices.most = 1
        choices.take(outputs)
        if not choices.begun:
            raise UpstreamError(f"{worker.url} did not prefill every choice")
        name = (answer.kv_transfer_params or {}).get("remote_request_id", answer.request_id)
        if name != answer.request_id:
            raise UpstreamError(f"{worker.url} handed over another request's KV")
        return outputs

    async def stream(
        self, attempt: Attempt, worker: Instance, wanted: GenerateRequest, *, ahead: bool = False
    ) -> Steps:
        """What a worker decodes; `ahead` of prefill, it may take prefill's time as well. The call
        has ended, and succeeded, before its last outputs are handed out: the reader may leave
        once it has them."""
        wanted = msgspec.structs.replace(wanted, deadline_s=attempt.state.left_s)
        body = encode_generate(wanted, stream=True)
        answer_s = self._times.first_s + (self._times.prefill_s if ahead else 0.0)
        patience = self._patience(attempt, worker, answer_s)
        choices = attempt.state.choices(wanted)
        outputs: list[RequestOutput] = []
        attempt.began = time.monotonic()
        with self._dispatch.calling(attempt.state, worker, "decode"):
            headers = traced(_JSON, attempt.state.record)
            events = self._client.stream(worker.url + GENERATE_PATH, body, headers, patience)
            async with contextlib.AsyncExitStack() as unfinished:
                unfinished.push_async_callback(events.aclose)
                async for event in events:
                    outputs = _outputs_of(_answer_in(event, worker, wanted))
                    choices.take(outputs)
                    attempt.decoded(outputs)
                    if choices.complete:
                        break
                    if outputs:
                        yield outputs
                else:
                    raise UpstreamError(f"{worker.url} ended the request early")
                # The rest of the stream is read by `finish`, so that its connection is kept.
                unfinished.pop_all()
                self._client.finish(events)
        yield outputs

    def _patience(self, attempt: Attempt, worker: Instance, answer_s: float) -> Patience:
        return Patience(attempt.state.deadline, answer_s, self._times.stall_s, worker)

    def release(self, worker: Instance, request_id: str) -> None:
        """Tell prefill, beside the request, that this attempt's KV will not be fetched."""
        self._client.beside(self._abort(worker, request_id))

    async def _abort(self, worker: Instance, request_id: str) -> None:
        body = msgspec.json.encode({"request_ids": [request_id]})
        with contextlib.suppress(TriptychError):
            await self._client.post(worker.url + ABORT_PATH, body, _JSON, Patience.of(_ABORT_S))


def _answer_in(data: bytes, worker: Instance, wanted: GenerateRequest) -> GenerateAnswer:
    def invalid(what: str) -> UpstreamError:
        return UpstreamError(f"{worker.url}: the answer is not a valid one: {what}")

    answer = decoded(data, GenerateAnswer, fail=invalid)
    if answer.error is not None:
        raise from_worker(answer.error)
    if answer.request_id != wanted.request_id:
        raise UpstreamError(f"{worker.url} answered another request")
    return answer


def _outputs_of(answer: GenerateAnswer) -> list[RequestOutput]:
    cached = answer.usage.cached_tokens if answer.usage is not None else None
    outputs = [
        RequestOutput(
            answer.request_id,
            choice.index,
            choice.token_ids,
            choice.logprobs.content if choice.logprobs is not None else None,
            choice.finish_reason,
            choice.stop_reason,
            cached,
            pooled=choice.pooled,
        )
        for choice in answer.choices
    ]
    if outputs:
        outputs[0].prompt_logprobs = answer.prompt_logprobs
    return outputs
