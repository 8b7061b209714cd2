"""What becomes of each request to an application: a record, handed on at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.request_record import RequestRecord
from services.http.errors import OUTCOME, drawn_id

_RECORD = "triptych.record"
Begun = Callable[[Mapping[str, str], RequestRecord], None]


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; one that is not looked at if none is kept."""
    found: RequestRecord = scope.get(_RECORD) or RequestRecord()
    return found


def traced_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Those that tell of a trace."""
    if b"traceparent" not in headers:  # nearly all; a state means nothing alone
        return {}
    names = (b"traceparent", b"tracestate")
    return {name.decode(): headers[name].decode("latin-1") for name in names if name in headers}


class Recorded:
    """ASGI application in front of another: requests to `paths` are recorded, their answers have
    `Server-Timing`. `begun` is told of each record at once, and of the headers that tell of its
    trace; `over` once the answer has been sent."""

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        over: Callable[[RequestRecord], None],
        begun: Begun,
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
        self._begun(traced_headers(headers), record)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if record.trace is not None:
                    record.first_output(time.monotonic())
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
