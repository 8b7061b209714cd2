"""Answers that notice when the client leaves: work stops, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import RequestAborted

_T = TypeVar("_T")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Awaitable[_T]) -> _T:
    """The result of `work`, cancelled (`RequestAborted`) as soon as the client has left.

    The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestAborted("the client left")
        return task.result()
    finally:
        watcher.cancel()
        await _ended(task)


async def _ended(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for it, so that its clean-up has run."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task


class EventStream(Response):
    """Server-sent events from an iterator of ready-made bytes.

    The iterator is closed when the client leaves, whatever it waits for.
    """

    def __init__(
        self, events: AsyncGenerator[bytes, None], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            status_code=200,
            headers={"cache-control": "no-cache", **(headers or {})},
            media_type="text/event-stream",
        )
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            watcher.cancel()
            await _ended(writer)

    async def _write(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


DONE = sse(b"[DONE]")


async def collect(items: AsyncIterator[list[_T]]) -> list[_T]:
    """Everything an iterator of lists yields."""
    return [item async for group in items for item in group]
