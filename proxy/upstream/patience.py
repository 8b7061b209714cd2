"""How long a call to a worker is waited for, and an answer that is read as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from protocol.errors import DeadlineExceeded, TriptychError, UpstreamError
from proxy.fleet.worker import Instance
from proxy.upstream.answer import Answer
from proxy.upstream.failures import DROPPED, SILENT, CallFailed, no_connection, unconnected
from proxy.upstream.sse import MAX_COMMENTS, EventCutter, EventTooLong
from services.http.tasks import ended

_T = TypeVar("_T")
_LOOK_S = 0.5  # between two looks at whether the worker is alive
_END_S = 1.0  # for the end of a message whose stream has ended
_DONE = b"[DONE]"


@dataclass(frozen=True)
class Patience:
    """How long to wait: until `deadline` (`time.monotonic`) for the whole, `answer_s` for an answer
    or a stream's first event, `stall_s` between events. Of a `worker` only as long as it is not
    lost, and only what it says itself; of anything else as long as it is `alive`.
    """

    deadline: float
    answer_s: float = math.inf
    stall_s: float = math.inf
    worker: Instance | None = None
    alive: Callable[[], bool] | None = None

    @staticmethod
    def of(seconds: float) -> Patience:
        return Patience(time.monotonic() + seconds)


async def patiently(work: Awaitable[_T], patience: Patience, url: str) -> _T:
    """`work` in time; network failures as errors of our tree."""
    late = time.monotonic() + patience.answer_s
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            # `wait` does not cancel the work at its timeout: the same call is waited for
            # again.
            await asyncio.wait((task,), timeout=next_look_s(patience, late, url))
        return task.result()
    except aiohttp.ClientError as error:
        raise unreachable(url, error) from None
    finally:
        if not task.done():
            await ended(task, aiohttp.ClientError)


def next_look_s(patience: Patience, late: float, url: str) -> float:
    """Seconds until the next look; raises once there is no more to wait for."""
    now = time.monotonic()
    if now >= patience.deadline:
        raise DeadlineExceeded(f"{url} did not answer before the request's deadline")
    if now >= late:
        raise CallFailed(f"{url} did not answer in time", "stalled", status=504)
    worker, alive = patience.worker, patience.alive
    if (worker is not None and worker.lost) or not (alive is None or alive()):
        raise CallFailed(f"{url} has gone silent", SILENT)
    return min(patience.deadline - now, late - now, _LOOK_S)


def unreachable(url: str, error: aiohttp.ClientError) -> TriptychError:
    if isinstance(error, aiohttp.ClientConnectorError):
        return unconnected(url, error.os_error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return no_connection(url)
    dropped = isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
    kind = DROPPED if dropped else "garbage"
    return CallFailed(f"{url}: {type(error).__name__}: {error}", kind)


class RawAnswer:
    """An answer whose head has come. `head` has no body yet."""

    def __init__(self, response: aiohttp.ClientResponse, patience: Patience, url: str) -> None:
        self._response = response
        self._patience = patience
        self._url = url
        content_type = response.headers.get("content-type", "").encode("latin-1")
        retry_after = response.headers.get("retry-after", "").encode("latin-1")
        self.head = Answer(response.status, content_type, b"", retry_after)

    async def whole(self, most: int) -> Answer:
        """The answer with its body; `UpstreamError` if that has more than `most` bytes."""
        body = await patiently(read_whole(self._response, most), self._patience, self._url)
        return self.head._replace(body=body)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Whole events, some at a time, to the end mark or the end of the body: of vLLM's routes
        only some send a mark. Raises `CallFailed` where the stream ends inside an event, or without
        one."""
        cutter, early, begun = EventCutter(), b"", False
        content, limit_s = self._response.content, self._patience.answer_s
        while piece := await next_piece(content, self._patience, limit_s, self._url):
            try:
                events = cutter.feed(piece)
            except EventTooLong:
                raise CallFailed(f"{self._url} sent an event without an end", "garbage") from None
            # Comments before the first event are no answer yet: another worker may still give one.
            begun, early = begun or b"data:" in events, early + events
            if begun and early:
                yield early
                early, limit_s = b"", self._patience.stall_s
            elif len(early) > MAX_COMMENTS:
                raise CallFailed(f"{self._url} sent comments without an end", "garbage")
            if cutter.ended:
                await self._end()
                return
        if cutter.inside or not begun:
            raise CallFailed(f"{self._url} ended its stream early", "cut_short")

    async def _end(self) -> None:
        """The message has to end too, or the connection cannot be kept; the answer is whole without
        that."""
        patience = Patience.of(_END_S)
        with contextlib.suppress(TriptychError):
            while await next_piece(self._response.content, patience, math.inf, self._url):
                pass


async def events_of(
    response: aiohttp.ClientResponse, patience: Patience, url: str
) -> AsyncGenerator[bytes, None]:
    """The data of each server-sent event of a stream of ours, the end mark excluded."""
    cutter, limit_s = EventCutter(), patience.answer_s
    while piece := await next_piece(response.content, patience, limit_s, url):
        try:
            events = cutter.feed(piece)
        except EventTooLong:
            raise UpstreamError(f"{url} sent an event without an end") from None
        for event in events.split(b"\n\n")[:-1]:
            data = event.removeprefix(b"data: ")
            if data == _DONE:
                # The message has to end too, or the connection cannot be kept.
                await next_piece(response.content, patience, patience.stall_s, url)
                return
            yield data
        limit_s = patience.stall_s
    raise CallFailed(f"{url} ended its stream early", "cut_short")


async def read_whole(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    while piece := await _more(response):
        body += piece
        if len(body) > most:
            raise UpstreamError(f"{response.url} answered with more than {most} bytes")
    return bytes(body)


async def next_piece(
    content: aiohttp.StreamReader, patience: Patience, limit_s: float, url: str
) -> bytes:
    """What has come, b"" at the end."""
    late = time.monotonic() + limit_s
    loop = asyncio.get_running_loop()
    while True:
        wait_s = next_look_s(patience, late, url)
        try:
            async with asyncio.timeout_at(loop.time() + wait_s):
                return await _any(content, url)
        except TimeoutError:
            # A slice of the wait has passed; `next_look_s` raises at the deadline.
            pass
        except aiohttp.ClientError as error:
            raise unreachable(url, error) from None


async def _more(response: aiohttp.ClientResponse) -> bytes:
    """What has come, b"" at the end."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                return await _any(response.content, str(response.url))


async def _any(content: aiohttp.StreamReader, url: str) -> bytes:
    """What has come, b"" at the end. Where the parts of a message are malformed aiohttp wakes no
    reader that waits, and raises an error that is none of its own for one that asks again."""
    try:
        return await content.readany()
    except RuntimeError as error:
        raise CallFailed(f"{url} broke its answer off: {error}", "garbage") from None
