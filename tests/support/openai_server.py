"""The OpenAI routes over HTTP before an engine that answers with one token again and again."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from fastapi import FastAPI

from protocol.errors import TriptychError, Unavailable
from protocol.types import RequestOutput
from services.frontend.models import Models
from services.frontend.render import Frontend
from services.frontend.spec import RenderedRequest
from services.http import errors
from services.http.anthropic import messaging
from services.http.bodies import Bodies
from services.http.listener import Listener
from services.http.long_texts import LongTexts
from services.http.openai import Service, generating
from services.http.responses import responding
from services.http.rtp_frontend import rtp_frontend
from services.http.tokens import informing
from tests.support.frontend_helpers import NAME, user
from tests.support.listening import listening

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass
class Server:
    """What answers: `step_s` before each of the tokens, which `deadlines`, `tenants` and `sessions`
    ask for."""

    front: Frontend
    room: int = 2
    step_s: float = 0.0
    timeout_s: float | None = None
    endless: bool = False
    response_store_bytes: int = 1 << 20
    largest: int = 1 << 20  # bytes of a body
    inside: int = 0
    most: int = 0
    running: int = 0
    most_running: int = 0
    deadlines: list[float | None] = field(default_factory=list)
    tenants: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    seen: list[TriptychError] = field(default_factory=list)
    texts: LongTexts = field(default_factory=LongTexts)

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        if self.inside >= self.room:
            raise Unavailable("full", retry_after_s=1.0)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            self.inside -= 1

    async def run(self, rendered: RenderedRequest) -> AsyncGenerator[list[RequestOutput], None]:
        self.deadlines.append(rendered.generate.deadline_s)
        self.tenants.append(rendered.tenant)
        self.sessions.append(rendered.session)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            sampling = rendered.generate.sampling
            for number in itertools.count():
                await asyncio.sleep(self.step_s)
                last = number == sampling.max_tokens - 1 and not self.endless
                yield [
                    RequestOutput(
                        rendered.generate.request_id,
                        token_ids=[100],
                        finish_reason="length" if last else None,
                    )
                ]
                if last:
                    break
        finally:
            self.running -= 1

    def service(self) -> Service:
        return Service(
            Models([self.front]), self.run, lambda rendered, index: None, self.admitted,
            Bodies(self.largest, 64 << 20), self.timeout_s, self.texts,
        )  # fmt: skip

    def app(self) -> FastAPI:
        app, service = FastAPI(), self.service()
        app.include_router(generating(service))
        app.include_router(messaging(service))
        app.include_router(responding(service, self.response_store_bytes))
        app.include_router(rtp_frontend(service))
        app.include_router(informing(replace(service, bodies=Bodies(64 << 20, 64 << 20))))
        errors.install(app, self.seen.append)
        return app


Ask = Callable[..., Awaitable[tuple[int, Any]]]


@contextlib.asynccontextmanager
async def asking(server: Server) -> AsyncGenerator[tuple[Ask, tuple[str, int]], None]:
    async with listening(server.app(), Listener) as address, aiohttp.ClientSession() as session:

        async def ask(
            path: str, body: Any = b"", *, method: str = "POST", **headers: str
        ) -> tuple[int, Any]:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            url = f"http://{address[0]}:{address[1]}{path}"
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.request(method, url, data=data, headers=named) as response:
                return response.status, json.loads(await response.read())

        yield ask, address


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": user("Hi"), "max_tokens": 2, **fields}
