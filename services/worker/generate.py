"""`POST /inference/v1/generate`: tokens in, tokens out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import TriptychError, error_info
from protocol.generate import (
    GENERATE_PATH,
    ChoiceBody,
    GenerateAnswer,
    LogprobsBody,
    UsageBody,
    answer_of,
    decode_generate,
)
from protocol.types import GenerateRequest, RequestOutput
from services.http.openai import read_body, request_id
from services.http.streams import DONE, EventStream, collect, sse, while_connected
from services.worker.worker import Worker


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.post(GENERATE_PATH)
    async def generate(request: Request) -> Response:
        """Generate from token ids, streamed or whole; the body is vLLM's."""
        wanted, stream = decode_generate(await read_body(request, worker.config.max_body_bytes))
        worker.check_model(wanted.model)
        if not wanted.request_id:
            wanted.request_id = request_id(request)
        steps = worker.generate(wanted)
        if stream:
            first = await while_connected(request, anext(steps))
            return EventStream(_events(wanted, first, steps))
        outputs = await while_connected(request, collect(steps))
        answer = msgspec.json.encode(whole_answer(wanted, outputs))
        return Response(answer, media_type="application/json")

    return routes


async def _events(
    request: GenerateRequest,
    first: list[RequestOutput],
    rest: AsyncGenerator[list[RequestOutput], None],
) -> AsyncGenerator[bytes, None]:
    """A step's gains as one event each, then usage, then the end mark."""
    usage = Usage(request)
    try:
        async with contextlib.aclosing(rest):
            yield _event(usage, first)
            async for outputs in rest:
                yield _event(usage, outputs)
        final = GenerateAnswer(request.request_id, [], usage.body())
        yield sse(msgspec.json.encode(final))
    except TriptychError as error:
        failed = GenerateAnswer(request.request_id, [], error=error_info(error))
        yield sse(msgspec.json.encode(failed))
    yield DONE


def _event(usage: Usage, outputs: list[RequestOutput]) -> bytes:
    usage.count(outputs)
    return sse(msgspec.json.encode(answer_of(outputs)))


class Usage:
    """Token counts of one request."""

    def __init__(self, request: GenerateRequest) -> None:
        self._prompt = len(request.token_ids)
        self._completion = sum(len(tokens) for tokens in request.emitted.values())
        self._cached = 0

    def count(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            self._completion += len(output.token_ids)
            self._cached = max(self._cached, output.cached_tokens or 0)

    def body(self) -> UsageBody:
        return UsageBody(self._prompt, self._completion, self._cached)


def whole_answer(request: GenerateRequest, outputs: list[RequestOutput]) -> GenerateAnswer:
    """All outputs of a request as one answer, choices in order."""
    usage = Usage(request)
    usage.count(outputs)
    choices: dict[int, ChoiceBody] = {}
    for output in outputs:
        choice = choices.setdefault(output.index, ChoiceBody(output.index, []))
        choice.token_ids += output.token_ids
        choice.finish_reason = output.finish_reason or choice.finish_reason
        choice.stop_reason = output.stop_reason
        if output.logprobs:
            choice.logprobs = choice.logprobs or LogprobsBody([])
            choice.logprobs.content += output.logprobs
    kv = next((o.kv_transfer_params for o in outputs if o.kv_transfer_params), None)
    ordered = [choices[index] for index in sorted(choices)]
    return GenerateAnswer(request.request_id, ordered, usage.body(), kv)
