"""RTP-LLM's raw requests: prompts as they are, answered whole or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import TriptychError
from protocol.openai import ChatCompletionRequest
from protocol.rtp_requests import RAW_PATH, RawRequest, decode_raw
from services.frontend.answers.answering import Answering, Steps, with_first
from services.frontend.answers.rtp import END, RawAnswer, event, rtp_error
from services.frontend.spec import RenderedRequest
from services.http.bodies import counted
from services.http.callers import caller_of, deadline_of, with_caller
from services.http.openai import JSON, Service, request_id
from services.http.records import record_of
from services.http.streams import Deadline, EventStream, while_connected
from services.http.tasks import all_of

_PROMPTS_AT_ONCE = 8  # as of the OpenAI routes


def raw_prompts(service: Service) -> APIRouter:
    """`POST /`."""
    routes = APIRouter()

    @routes.post(RAW_PATH)
    @counted(service.admitted)
    async def raw(request: Request) -> Response:
        """RTP-LLM's raw request: `prompt` or `prompt_batch`, `images`, `generate_config`,
        `yield_generator`. It names no model: the first one answers."""
        return await _Raw(service, request).answer()

    return routes


class _Raw:
    """One raw request on its way."""

    def __init__(self, service: Service, request: Request) -> None:
        self._service = service
        self._request = request
        self._deadline = deadline_of(request.headers, service.timeout_s)

    async def answer(self) -> Response:
        service, request = self._service, self._request
        async with service.bodies.read(request) as body:
            wanted = await service.bodies.decoded(body, decode_raw)
            if wanted.timeout_s is not None:
                # The body's own time counts from here: it is known only once the body has been
                # read.
                at = Deadline.after(wanted.timeout_s).at
                self._deadline = Deadline(min(at, self._deadline.at))
            with record_of(request.scope).during("render"):
                render = self._rendered(wanted, len(body))
                prompts = await while_connected(request, render, self._deadline)
        if wanted.stream:
            return await self._stream(wanted, prompts[0])
        answers = await while_connected(request, self._wholes(wanted, prompts), self._deadline)
        told = {"response_batch": answers} if wanted.batch else answers[0]
        return Response(msgspec.json.encode(told), media_type=JSON)

    async def _rendered(self, wanted: RawRequest, size: int) -> list[RenderedRequest]:
        frontend, request = self._service.models.first, self._request
        name, caller = request_id(request), caller_of(request)
        prompts = []
        for index, (asked, images) in enumerate(zip(wanted.requests, wanted.images, strict=True)):
            own = f"{name}-{index}" if wanted.batch else name
            if isinstance(asked, ChatCompletionRequest):
                asked.mm_processor_kwargs = wanted.pixels or asked.mm_processor_kwargs
                one = await frontend.render_chat(asked, request_id=own, caller=caller, size=size)
            else:
                one = await frontend.render_raw(
                    asked, images, request_id=own, pixels=wanted.pixels, caller=caller
                )
            prompts.append(with_caller(one, request, self._deadline))
        return prompts

    async def _wholes(
        self, wanted: RawRequest, prompts: list[RenderedRequest]
    ) -> list[dict[str, Any]]:
        """A few prompts at once; the first failure ends them all."""
        room = asyncio.Semaphore(_PROMPTS_AT_ONCE)
        return await all_of(self._whole(wanted, one, room) for one in prompts)

    async def _whole(
        self, wanted: RawRequest, prompt: RenderedRequest, room: asyncio.Semaphore
    ) -> dict[str, Any]:
        answering, builder = self._service.answering(prompt), _builder(wanted, prompt)
        async with room, contextlib.aclosing(answering.gains(self._service.run(prompt))) as steps:
            async for gains in steps:
                for gain in gains:
                    builder.add(gain)
        return builder.told(_cached(answering))

    async def _stream(self, wanted: RawRequest, prompt: RenderedRequest) -> Response:
        steps = self._service.run(prompt)
        first = await while_connected(self._request, anext(steps), self._deadline)
        builder = _builder(wanted, prompt)
        events = _events(self._service.answering(prompt), builder, with_first(first, steps))
        return EventStream(events, deadline=self._deadline, failed=_failed)


def _builder(wanted: RawRequest, prompt: RenderedRequest) -> RawAnswer:
    return RawAnswer(
        prompt.output,
        several=wanted.several,
        incremental=wanted.incremental,
        aux_info=wanted.aux_info,
        output_ids=wanted.output_ids,
        input_ids=wanted.input_ids,
    )


async def _events(
    answering: Answering, builder: RawAnswer, steps: Steps
) -> AsyncGenerator[bytes, None]:
    try:
        async with contextlib.aclosing(answering.gains(steps)) as all_gains:
            async for gains in all_gains:
                for gain in gains:
                    builder.add(gain)
                yield event(builder.told(_cached(answering)))
        yield END
    except TriptychError as error:
        yield _failed(error)


def _failed(error: TriptychError) -> bytes:
    return event(rtp_error(error))


def _cached(answering: Answering) -> int:
    details = answering.usage().prompt_tokens_details
    return 0 if details is None else details.cached_tokens
