"""`POST /inference/v1/generate`: tokens in, tokens out."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import TriptychError, error_info
from protocol.generate import GENERATE_PATH, decode_generate
from protocol.generate_answers import GenerateAnswer, TokenCounts, whole_answer
from protocol.sampling_checks import check_priority
from protocol.types import GenerateRequest, RequestOutput
from services.http.bodies import counted
from services.http.openai import request_id
from services.http.records import record_of
from services.http.streams import DONE, Deadline, EventStream, collect, sse, while_connected
from services.worker.worker import Worker


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    @routes.post(GENERATE_PATH)
    @counted(worker.admitted)
    async def generate(request: Request) -> Response:
        """Generate from token ids, streamed or whole; the body is vLLM's."""
        async with worker.bodies.read(request) as body:
            wanted, stream = await worker.bodies.decoded(body, decode_generate)
        worker.check_model(wanted)
        check_priority(wanted.priority, worker.frontend.config.min_priority)
        if not wanted.request_id:
            wanted.request_id = request_id(request)
        deadline = Deadline.after(wanted.deadline_s)
        steps = worker.generate(wanted, record_of(request.scope))
        if stream:
            # Before the head is sent: an error until then is answered with a status of its own.
            first = await while_connected(request, anext(steps))
            events = _events(wanted, first, steps)
            return EventStream(events, deadline=deadline, failed=lambda e: _failed(wanted, e))
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
    usage = TokenCounts(request)
    try:
        async with contextlib.aclosing(rest):
            yield _event(usage, first)
            async for outputs in rest:
                yield _event(usage, outputs)
        final = GenerateAnswer(request.request_id, [], usage.body())
        yield sse(msgspec.json.encode(final))
    except TriptychError as error:
        yield _failed(request, error)
    yield DONE


def _failed(request: GenerateRequest, error: TriptychError) -> bytes:
    return sse(msgspec.json.encode(GenerateAnswer(request.request_id, [], error=error_info(error))))


def _event(usage: TokenCounts, outputs: list[RequestOutput]) -> bytes:
    return sse(msgspec.json.encode(usage.step(outputs)))
