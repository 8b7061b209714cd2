"""Texts and tokens of requests that only ask about them: work that may take the loop too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from fastapi import Request, Response

from services.frontend.prompts.maker import OFFLOAD_CHARS
from services.http.streams import while_connected

_JSON = "application/json"
_AT_ONCE = 2  # threads


class LongTexts:
    """Work on long texts leaves the event loop, and little of it is done at once: prompts, grammars
    and pictures of requests need the same threads. One for all routes of a process."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._room = asyncio.Semaphore(at_once)

    async def answered(
        self, request: Request, work: Callable[[], msgspec.Struct], size: int
    ) -> Response:
        """What `work` makes of a text of `size` characters, or of as many tokens, as JSON.
        `RequestAborted` if the client leaves; work that has not begun is not done then."""
        if size <= OFFLOAD_CHARS:
            return Response(msgspec.json.encode(work()), media_type=_JSON)
        body = await while_connected(request, self._encoded(work))
        return Response(body, media_type=_JSON)

    async def _encoded(self, work: Callable[[], msgspec.Struct]) -> bytes:
        await self._room.acquire()
        thread = asyncio.ensure_future(asyncio.to_thread(lambda: msgspec.json.encode(work())))
        # A thread cannot be called back: one whose client has left has its place until it is done.
        thread.add_done_callback(lambda _: self._room.release())
        return await asyncio.shield(thread)
