"""Anthropic's Messages API, before a proxy's pipeline and before a worker's own engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.anthropic import MESSAGES_PATH, CountRequest, decode_count, decode_messages
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from services.frontend.anthropic.answer import MessageAnswer
from services.frontend.anthropic.chats import as_of_message, chat_of_message
from services.frontend.spec import RenderedRequest
from services.http.bodies import counted
from services.http.openai import JSON, Service
from services.http.streams import Deadline, EventStream, while_connected


def messaging(service: Service) -> APIRouter:
    """Messages and what they would cost."""
    routes = APIRouter()

    @routes.post(MESSAGES_PATH)
    @counted(service.admitted)
    async def create(request: Request) -> Response:
        """Anthropic messages, tools, pictures and reasoning included."""
        rendered = await _rendered(service, request, decode_messages)
        answer = MessageAnswer(f"msg_{uuid.uuid4().hex}", rendered.output.model)
        deadline = Deadline.after(rendered.generate.deadline_s)
        answering, steps = service.answering(rendered), service.run(rendered)
        if not rendered.output.stream:
            whole = await while_connected(request, answer.whole(answering, steps), deadline)
            return Response(msgspec.json.encode(whole), media_type=JSON)
        # Awaited before the head is sent, so that a refusal still has a status of its own.
        first = await while_connected(request, anext(steps), deadline)
        events = answer.events(answering, first, steps)
        return EventStream(events, deadline=deadline, failed=answer.failed)

    @routes.post(MESSAGES_PATH + "/count_tokens")
    @counted(service.admitted)
    async def count(request: Request) -> Response:
        """How many tokens a message's prompt has."""
        rendered = await _rendered(service, request, decode_count)
        told = {"input_tokens": len(rendered.generate.token_ids)}
        return Response(msgspec.json.encode(told), media_type=JSON)

    return routes


async def _rendered(
    service: Service, request: Request, decode: Callable[[bytes], CountRequest]
) -> RenderedRequest:
    """The chat that a request stands for; errors name the request's own fields."""
    # `rendered_chat` gives back no request: errors need the one that was decoded within.
    asked: list[CountRequest] = []

    def chat(body: bytes) -> ChatCompletionRequest:
        asked.append(decode(body))
        return chat_of_message(asked[0])

    try:
        return await service.rendered_chat(request, chat)
    except InvalidRequest as error:
        raise (as_of_message(error, asked[0]) if asked else error) from None
