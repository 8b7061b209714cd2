"""A worker's answer as it comes: of any status and content type, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import aiohttp

from protocol.errors import UpstreamError
from proxy.upstream.answer import Answer
from proxy.upstream.failures import CallFailed
from proxy.upstream.patience import Patience, next_look_s, patiently, unreachable
from proxy.upstream.sse import EventCutter, EventTooLong


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
        only some send a mark. Raises `CallFailed` where the stream ends inside an event."""
        cutter = EventCutter()
        content, limit_s = self._response.content, self._patience.answer_s
        while piece := await next_piece(content, self._patience, limit_s, self._url):
            try:
                events = cutter.feed(piece)
            except EventTooLong:
                raise CallFailed(f"{self._url}: an event without an end", "garbage") from None
            if events:
                yield events
                limit_s = self._patience.stall_s
        if cutter.inside:
            raise CallFailed(f"{self._url}: the stream ended early", "cut_short")


async def read_whole(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            raise UpstreamError(f"{response.url}: an answer of more than {most} bytes")
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
                return await content.readany()
        except TimeoutError:
            pass
        except aiohttp.ClientError as error:
            raise unreachable(url, error) from None
