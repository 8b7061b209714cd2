"""Headers that every answer has: the request's id, and the instance that answers."""

from __future__ import annotations

import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.generate import INSTANCE_HEADER


class InstanceHeader:
    """Adds the name of `instance_id` to every answer of `app`, errors too: another process that has
    the address one day does not, so that a caller can tell its answers from this worker's."""

    def __init__(self, app: ASGIApp, instance_id: str) -> None:
        self._app = app
        # Encoded once: it is added to every answer.
        self._field = INSTANCE_HEADER.encode(), instance_id.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self._field]
            await send(message)

        await self._app(scope, receive, named)


_DRAWN = "triptych.request_id"


def drawn_id(scope: Scope) -> str:
    """This server's own name of a request."""
    # The header, the record and the worker get the same name, in whichever order they ask.
    name: str = scope.setdefault(_DRAWN, secrets.token_hex(16))
    return name


class RequestIdHeader:
    """Every answer has `X-Request-Id`: the request's, or one that is drawn."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers") or ()
        names = [pair for pair in headers if pair[0] == b"x-request-id"]

        if not names and scope["type"] == "http":
            names = [(b"x-request-id", drawn_id(scope).encode())]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                # A new list: `raw_headers` of a response may be sent again.
                message["headers"] = [*message["headers"], *names]
            await send(message)

        await self._app(scope, receive, named)
