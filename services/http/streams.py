"""The deadline of a request, and responses that end when it passes or the client disconnects: they
stop the work and release what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import DeadlineExceeded, InternalError, RequestAborted, TriptychError
from protocol.types import GenerateRequest
from services.http.listener import ABORT, ENDED
from services.http.tasks import ended

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_GRACE_S = 1.0  # seconds


@dataclass(frozen=True)
class Deadline:
    """`at` is of `time.monotonic`, infinite if none is set."""

    at: float = math.inf

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        # `time.monotonic`: a clock that is set does not end requests.
        return Deadline() if seconds is None else Deadline(time.monotonic() + seconds)

    @property
    def left_s(self) -> float | None:
        """None if there is no deadline, not less than 0."""
        return None if self.at == math.inf else max(0.0, self.at - time.monotonic())

    def bounding(self, request: GenerateRequest) -> GenerateRequest:
        """The request with what is left as its deadline; `DeadlineExceeded` if that is nothing."""
        left = self.left_s
        if left == 0.0:
            # Before a worker is asked: it would compute for a client that has given up.
            raise self.exceeded()
        # Seconds that are left, not a time of day: clocks of machines differ.
        return msgspec.structs.replace(request, deadline_s=left)

    @staticmethod
    def exceeded() -> DeadlineExceeded:
        return DeadlineExceeded("the request's deadline has passed")


NEVER = Deadline()


def ended_by(scope: Scope) -> TriptychError | None:
    """Why the server has no more time for a request, None as long as it has."""
    error: TriptychError | None = scope.get("extensions", {}).get(ENDED)
    return error


async def over(scope: Scope, receive: Receive) -> None:
    """Until the client has left, or the server has no more time for its request, whose body must
    have been read."""
    # `Listener.end` wakes `receive` with an empty message: only the scope says why.
    while ended_by(scope) is None:
        if (await receive())["type"] == "http.disconnect":
            return


async def while_connected(request: Request, work: Awaitable[_T], deadline: Deadline = NEVER) -> _T:
    """The result of `work`, cancelled as soon as the client has left (`RequestAborted`), the
    deadline has passed (`DeadlineExceeded`), or the server ends (`NotServing`).

    The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(over(request.scope, request.receive))
    try:
        await asyncio.wait(
            {task, watcher}, timeout=deadline.left_s, return_when=asyncio.FIRST_COMPLETED
        )
        # The work first: where both have ended, an answer that is ready goes out.
        if task.done():
            return task.result()
        if watcher.done():
            raise ended_by(request.scope) or RequestAborted("the client left")
        raise deadline.exceeded()
    finally:
        watcher.cancel()
        # Its clean-up tells workers to abort; it must not outlive the request.
        await _unless_done(task)


async def _unless_done(task: asyncio.Future[Any]) -> None:
    """End a task, so that its clean-up has run."""
    if not task.done():
        await ended(task)


class EventStream(Response):
    """Server-sent events from an iterator of ready-made bytes.

    The iterator is closed when the client leaves, when the server ends, and soon after the
    deadline, even while it waits: a client that does not read holds it no longer. It has
    `_GRACE_S` to end by itself. `failed` makes the event that tells of an error.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: dict[str, str] | None = None,
        deadline: Deadline = NEVER,
        failed: Callable[[TriptychError], bytes] | None = None,
    ) -> None:
        super().__init__(
            status_code=200,
            headers={"cache-control": "no-cache", **(headers or {})},
            media_type="text/event-stream",
        )
        # Starlette sets it for the empty body; the stream is sent in chunks.
        del self.headers["content-length"]
        self._events = events
        self._deadline = deadline
        self._failed = failed or error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(over(scope, receive))
        left_s = self._deadline.left_s
        limit_s = None if left_s is None else left_s + _GRACE_S
        both = {writer, watcher}
        try:
            await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            elif not watcher.done() or ended_by(scope):
                # Before the error is sent: both would write to one connection.
                await ended(writer)
                error = ended_by(scope) or self._deadline.exceeded()
                await self._cut_short(scope, send, watcher, error)
        finally:
            watcher.cancel()
            await _unless_done(writer)

    async def _write(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while (event := await self._next(events)) is not None:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, events: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next event, None at the end; for an error that has not become one before, an event
        that tells of it and the end mark, after which there is nothing more."""
        try:
            return await anext(events, None)
        except TriptychError as error:
            return self._failed(error) + DONE
        except Exception:
            logger.exception("a stream failed")
            return self._failed(InternalError("internal error")) + DONE

    async def _cut_short(
        self, scope: Scope, send: Send, watcher: asyncio.Future[None], error: TriptychError
    ) -> None:
        """One error event, or the end of the connection if the client does not take even that."""
        last = self._failed(error) + DONE
        try:
            async with asyncio.timeout(_GRACE_S):
                await send({"type": "http.response.body", "body": last, "more_body": False})
        except TimeoutError:
            if (abort := scope.get("extensions", {}).get(ABORT)) is not None:
                # A transport that is full would keep the error, and the connection, for as long as
                # it likes.
                abort()
                # Until uvicorn knows: it logs answers that end early while their client is there.
                await asyncio.wait({watcher}, timeout=_GRACE_S)


def sse(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def error_event(error: TriptychError) -> bytes:
    """An error in OpenAI's form, in the middle of a stream."""
    return sse(msgspec.json.encode(error.to_openai()))


DONE = sse(b"[DONE]")


async def collect(items: AsyncIterator[list[_T]]) -> list[_T]:
    """Everything an iterator of lists yields."""
    return [item async for group in items for item in group]
