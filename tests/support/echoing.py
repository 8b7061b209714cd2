"""The relay's listener before a hot path that says what it has been asked."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import TriptychError, Unavailable
from protocol.request_record import RequestRecord
from proxy.relay.response import ClientResponse
from proxy.relay.serving import connection_class
from proxy.upstream.answer import Answer
from services.http.bodies import Bodies
from services.http.client_bounds import Pace
from tests.support.listening import listening


@dataclass
class Echo:
    """A hot path that says what it has been asked; `inside` counts requests."""

    takes_any: bool = True
    takes_all: bool = True
    max_body_bytes: int = 1 << 20
    room: int = 100
    inside: int = 0
    seen: list[TriptychError] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    size: int = 0
    gate: asyncio.Event | None = None
    bodies: Bodies = field(default_factory=lambda: Bodies(1 << 20, 1 << 20, stall_s=0.05))

    def takes(self, body: bytes) -> bool:
        return self.takes_all

    def enter(self) -> None:
        if self.inside >= self.room:
            raise Unavailable("full", retry_after_s=1.0)
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1

    def keeps_record(self, request_id: bytes) -> bool:
        return True

    def observe(self, error: TriptychError) -> None:
        self.seen.append(error)

    def over(self, reply: ClientResponse) -> None:
        self.records.append(reply.record)

    async def answer(self, call: Any, reply: ClientResponse, source: Any) -> None:
        if self.gate is not None:
            await self.gate.wait()
        body = call.body + b"x" * self.size
        reply.whole(Answer(200, b"application/json", b"hot:" + body))


async def application(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    said = b"cold:" + body
    length = (b"content-length", str(len(said)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": said})


@contextlib.asynccontextmanager
async def edge(hot: Echo, pace: Pace | None = None) -> AsyncGenerator[tuple[str, int], None]:
    def protocol(*args: Any) -> Any:
        return connection_class(hot, pace)(*args)

    async with listening(application, protocol) as address:
        yield address
