"""The OpenAI routes, the same before a proxy's pipeline and before a worker's own engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import InvalidRequest, PayloadTooLarge
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH, decode_chat, decode_completion
from protocol.openai_answers import Answer, encode
from services.frontend.answering import Answering, Steps
from services.frontend.answers import merge
from services.frontend.render import Frontend, RenderedRequest
from services.http.callers import with_caller
from services.http.streams import EventStream, while_connected

JSON = "application/json"


@dataclass(frozen=True)
class Service:
    """What answers requests. `run` computes a rendered request; `stop_choice` is told when a stop
    string has ended one of its choices; `check_room` raises while no request can be taken."""

    frontend: Frontend
    run: Callable[[RenderedRequest], Steps]
    stop_choice: Callable[[RenderedRequest, int], None]
    check_room: Callable[[], None]
    max_body_bytes: int

    async def rendered_chat(self, request: Request) -> RenderedRequest:
        """A chat request, read, checked and rendered; `RequestAborted` if the client has left."""
        wanted = decode_chat(await self._body(request))
        render = self.frontend.render_chat(wanted, request_id=request_id(request))
        return with_caller(await while_connected(request, render), request.headers)

    async def rendered_completion(self, request: Request) -> list[RenderedRequest]:
        wanted = decode_completion(await self._body(request))
        prompts = await self.frontend.render_completion(wanted, request_id=request_id(request))
        return [with_caller(prompt, request.headers) for prompt in prompts]

    async def _body(self, request: Request) -> bytes:
        self.check_room()
        return await read_body(request, self.max_body_bytes)

    async def answer(self, request: Request, rendered: RenderedRequest) -> Response:
        """The whole answer, or a stream whose first tokens are there already."""
        if not rendered.output.stream:
            return Response(encode(await self._whole(request, rendered)), media_type=JSON)
        steps = self.run(rendered)
        first = await while_connected(request, anext(steps))
        return EventStream(self._answering(rendered).events(first, steps))

    async def answer_all(self, request: Request, prompts: list[RenderedRequest]) -> Response:
        """One answer to several prompts."""
        if prompts[0].output.stream:
            raise InvalidRequest("several prompts cannot be streamed at once", param="stream")
        answers = [await self._whole(request, prompt) for prompt in prompts]
        return Response(encode(merge(answers)), media_type=JSON)

    async def _whole(self, request: Request, rendered: RenderedRequest) -> Answer:
        work = self._answering(rendered).whole(self.run(rendered))
        return await while_connected(request, work)

    def _answering(self, rendered: RenderedRequest) -> Answering:
        return Answering(
            rendered.output,
            self.frontend.tokenizer,
            stop_choice=lambda index: self.stop_choice(rendered, index),
        )


def generating(service: Service) -> APIRouter:
    """Chat and text completions."""
    routes = APIRouter()

    @routes.post(CHAT_PATH)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions, pictures included.

        `X-Request-Timeout`: seconds that the request may take. `X-Session-Id`: the conversation it
        belongs to.
        """
        return await service.answer(request, await service.rendered_chat(request))

    @routes.post(COMPLETIONS_PATH)
    async def completions(request: Request) -> Response:
        """OpenAI text completions."""
        prompts = await service.rendered_completion(request)
        if len(prompts) == 1:
            return await service.answer(request, prompts[0])
        return await service.answer_all(request, prompts)

    return routes


class _Tokenize(msgspec.Struct):
    prompt: str
    add_special_tokens: bool = True


class _Detokenize(msgspec.Struct):
    tokens: list[int]


def informing(frontend: Frontend) -> APIRouter:
    """The model and its tokenizer."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> Response:
        return Response(encode(frontend.models()), media_type=JSON)

    @routes.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """Token ids of a text."""
        wanted = _decode(await request.body(), _Tokenize)
        ids = frontend.tokenizer.encode(wanted.prompt, add_special_tokens=wanted.add_special_tokens)
        return {"tokens": ids, "count": len(ids), "max_model_len": frontend.info.max_model_len}

    @routes.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        """Text of token ids."""
        wanted = _decode(await request.body(), _Detokenize)
        return {"prompt": frontend.tokenizer.decode(wanted.tokens)}

    return routes


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidRequest(str(error)) from None


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; `PayloadTooLarge` if it exceeds `limit` bytes.

    Of a body that is too large as much again is read and thrown away: a client that is cut off
    while it writes sees a broken connection instead of the answer.
    """
    body = bytearray()
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > 2 * limit:
            break
    if size > limit:
        raise PayloadTooLarge(f"the request is larger than {limit} bytes")
    return bytes(body)


def request_id(request: Request) -> str:
    """Unique even if clients repeat theirs, which is echoed on the answer."""
    given = request.headers.get("x-request-id")
    name = uuid.uuid4().hex
    return f"{given[:128]}-{name[:8]}" if given else name
