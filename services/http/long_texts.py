"""Texts and tokens of requests that only ask about them: work that may take the loop too long."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from fastapi import Request, Response

from services.frontend.prompts.maker import OFFLOAD_CHARS
from services.http.streams import while_connected
from services.http.tasks import Threads

_JSON = "application/json"
_AT_ONCE = 2  # threads


class LongTexts:
    """Work on long texts leaves the event loop, and little of it is done at once. One for all
    routes of a process."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._threads = Threads(at_once)

    async def answered(
        self, request: Request, work: Callable[[], msgspec.Struct], size: int
    ) -> Response:
        """What `work` makes of a text of `size` characters, or of as many tokens, as JSON.
        `RequestAborted` if the client leaves; work that has not begun is not done then."""
        if size <= OFFLOAD_CHARS:
            return Response(msgspec.json.encode(work()), media_type=_JSON)
        encoded = self._threads.run(lambda: msgspec.json.encode(work()))
        return Response(await while_connected(request, encoded), media_type=_JSON)
