"""A server that speaks OpenAI's streaming API with known answers, delays and faults."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PIECE = 11  # bytes per write: events never end where writes do


@dataclass
class FakeOpenAI:
    """Answers with `tokens`, `delay` seconds before each; `answers` knows better by messages.

    Requests number n (from 0, in order of arrival) in `refuse` get a 503, in `cut` lose their
    connection after the first token, in `break_off` get an error event there.
    """

    tokens: tuple[str, ...] = ("one ", "two ", "three")
    delay: float = 0.0
    answers: dict[str, str] = field(default_factory=dict)
    refuse: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    break_off: frozenset[int] = frozenset()
    has_tokenize: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    in_flight: int = 0
    peak_in_flight: int = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves on a free loopback port; gives the base URL."""
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "root": "/no/dir"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        """Two tokens per word."""
        if not self.has_tokenize:
            raise web.HTTPNotFound
        body = await request.json()
        return web.json_response({"count": 2 * len(body["prompt"].split()), "max_model_len": 4096})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.headers.append(request.headers)
        if number in self.refuse:
            return web.json_response({"error": {"message": "busy", "code": 503}}, status=503)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        try:
            return await self._stream(request, body, number)
        finally:
            self.in_flight -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], number: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_chat = "messages" in body
        if is_chat:
            await self._event(response, _chat({"role": "assistant", "content": ""}))
        tokens = self._tokens(body)
        for index, token in enumerate(tokens):
            await asyncio.sleep(self.delay)
            await self._event(response, _chat({"content": token}) if is_chat else _text(token))
            if index == 0 and number in self.break_off:
                await self._event(response, {"error": {"message": "worker lost"}})
            if index == 0 and number in self.cut:
                assert request.transport is not None
                request.transport.close()
                return response
        await self._event(response, _chat({}, "length") if is_chat else _text("", "length"))
        usage = {"prompt_tokens": 7, "completion_tokens": len(tokens)}
        await self._event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    def _tokens(self, body: dict[str, Any]) -> tuple[str, ...]:
        known = self.answers.get(json.dumps(body.get("messages")))
        return self.tokens if known is None else tuple(known)

    async def _event(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        for piece in _pieces(f"data: {json.dumps(event)}\n\n".encode()):
            await response.write(piece)


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + PIECE] for start in range(0, len(data), PIECE))


def _chat(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _text(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}
