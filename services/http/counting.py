"""Requests counted in before their body is read, and out once their answer has been sent."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Admitted = Callable[[], AbstractContextManager[None]]
_Handler = Callable[[Request], Awaitable[Response]]


def counted(admitted: Admitted) -> Callable[[_Handler], _Handler]:
    """For a route: `admitted` is entered while a request is here; what it raises is the answer. (A
    dependency of FastAPI's would do at several times the cost.)"""

    def wrap(handler: _Handler) -> _Handler:
        @functools.wraps(handler)
        async def work(request: Request) -> Response:
            with ExitStack() as stack:
                stack.enter_context(admitted())
                response = await handler(request)
                return _Counted(response, stack.pop_all())

        return work

    return wrap


class _Counted(Response):
    """An answer that leaves `place` once it is sent, or cannot be."""

    def __init__(self, response: Response, place: ExitStack) -> None:
        self._response = response
        self._place = place
        self.background = response.background
        self.raw_headers = response.raw_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await self._response(scope, receive, send)
