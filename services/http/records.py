"""What becomes of each request to an application: a record, handed on at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.request_record import RequestRecord
from services.http.errors import OUTCOME, drawn_id

_RECORD = "triptych.record"


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; one that is not looked at if none is kept."""
    found: RequestRecord = scope.get(_RECORD) or RequestRecord()
    return found


class Recorded:
    """ASGI application in front of another: requests to `paths` are recorded, their answers have
    `Server-Timing`. `begun` is told of each record at once, `over` once the answer has been
    sent."""

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        begun: Callable[[RequestRecord], None],
        over: Callable[[RequestRecord], None],
    ) -> None:
        self._app = app
        self._paths = frozenset(paths)
        self._begun = begun
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        record = scope[_RECORD] = RequestRecord(scope["path"], _id_of(scope, headers))
        length = headers.get(b"content-length", b"")
        record.bytes_in = int(length) if length.isdigit() else 0
        self._begun(record)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                timing = (b"server-timing", record.server_timing())
                message["headers"] = [*message["headers"], timing]
            else:
                record.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            record.outcome = scope.get(OUTCOME, "") or record.outcome
            self._over(record)


def _id_of(scope: Scope, headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    return given.decode("latin-1") or drawn_id(scope)
