"""`/v1/chat/completions` and `/v1/completions` of the proxy."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Request, Response

from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH, decode_chat, decode_completion
from protocol.openai_answers import Answer, encode
from proxy.gateway import Gateway
from services.frontend.answering import Answering
from services.frontend.answers import merge
from services.frontend.render import RenderedRequest
from services.http.streams import EventStream, while_connected

_JSON = "application/json"


def router(gateway: Gateway) -> APIRouter:
    routes = APIRouter()

    @routes.post(CHAT_PATH)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions, pictures included."""
        wanted = decode_chat(await _body(gateway, request))
        render = gateway.frontend.render_chat(wanted, request_id=_request_id(request))
        return await _answer(gateway, request, await while_connected(request, render))

    @routes.post(COMPLETIONS_PATH)
    async def completions(request: Request) -> Response:
        """OpenAI text completions."""
        wanted = decode_completion(await _body(gateway, request))
        prompts = await gateway.frontend.render_completion(wanted, request_id=_request_id(request))
        if len(prompts) == 1:
            return await _answer(gateway, request, prompts[0])
        if prompts[0].output.stream:
            raise InvalidRequest("several prompts cannot be streamed at once", param="stream")
        answers = [await _whole(gateway, request, prompt) for prompt in prompts]
        return Response(encode(merge(answers)), media_type=_JSON)

    return routes


async def _answer(gateway: Gateway, request: Request, rendered: RenderedRequest) -> Response:
    if not rendered.output.stream:
        return Response(encode(await _whole(gateway, request, rendered)), media_type=_JSON)
    steps = gateway.run(rendered)
    first = await while_connected(request, anext(steps))
    answering = Answering(rendered.output, gateway.frontend.tokenizer)
    return EventStream(answering.events(first, steps))


async def _whole(gateway: Gateway, request: Request, rendered: RenderedRequest) -> Answer:
    answering = Answering(rendered.output, gateway.frontend.tokenizer)
    return await while_connected(request, answering.whole(gateway.run(rendered)))


async def _body(gateway: Gateway, request: Request) -> bytes:
    """The request's body, refused before it is read if it is too large or there is no room."""
    gateway.check_room()
    limit = gateway.config.max_body_bytes
    length = request.headers.get("content-length", "")
    body = bytearray()
    if not (length.isdigit() and int(length) > limit):
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                break
        else:
            return bytes(body)
    raise PayloadTooLarge(f"the request is larger than {limit} bytes")


def _request_id(request: Request) -> str:
    """Unique even if clients repeat theirs, which is echoed on the answer."""
    given = request.headers.get("x-request-id")
    name = uuid.uuid4().hex
    return f"{given[:128]}-{name[:8]}" if given else name
