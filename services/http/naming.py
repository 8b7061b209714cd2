"""The instance that gives an answer, named in the answer."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.generate import INSTANCE_HEADER


class InstanceHeader:
    """Adds the name of `instance_id` to every answer of `app`, errors too: another process that has
    the address one day does not, so that a caller can tell its answers from this worker's."""

    def __init__(self, app: ASGIApp, instance_id: str) -> None:
        self._app = app
        self._field = INSTANCE_HEADER.encode(), instance_id.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self._field]
            await send(message)

        await self._app(scope, receive, named)
