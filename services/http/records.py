"""What every request has: an id, which its answer says, and a record, handed on at its end; and the
tracer that a process makes spans of records with."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import ConfigError
from protocol.generate import INSTANCE_HEADER
from protocol.request_record import RequestRecord
from protocol.server_options import TraceOptions
from services.http.errors import OUTCOME

if TYPE_CHECKING:
    from services.http.tracing import Tracer

_RECORD = "triptych.record"
_DRAWN = "triptych.request_id"
# https://www.w3.org/TR/trace-context/: a later version may add fields after these four.
_TRACE_PARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]+)?"
)
_TRACE_STATE = re.compile(rb"[\x20-\x7e]{1,512}")


def drawn_id(scope: Scope) -> str:
    """This server's own name of a request."""
    # The header, the record and the worker get the same name, in any order of asking.
    name: str = scope.setdefault(_DRAWN, secrets.token_hex(16))
    return name


def record_of(scope: Scope) -> RequestRecord:
    """The record of a request; one that is not looked at if none is kept."""
    # Callers need not ask whether records are kept.
    found: RequestRecord = scope.get(_RECORD) or RequestRecord()
    return found


def traced_headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """Those that tell of a trace, if they have the form of one: they go on to workers."""
    parent = headers.get(b"traceparent")
    if parent is None:  # nearly all; a state means nothing alone
        return {}
    if _TRACE_PARENT.fullmatch(parent) is None:
        return {}
    found = {"traceparent": parent.decode()}
    state = headers.get(b"tracestate", b"")
    return found | {"tracestate": state.decode()} if _TRACE_STATE.fullmatch(state) else found


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


class Recorded:
    """ASGI application in front of another: requests to `paths` are recorded, their answers have
    `Server-Timing`. `begun` is told of each record at once, which has the client's trace; `over`
    once the answer has been sent."""

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        over: Callable[[RequestRecord], None],
        begun: Callable[[RequestRecord], None],
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
        record.trace_headers = traced_headers(headers)
        self._begun(record)

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
            # The code of an error is known only where it was made an answer.
            record.outcome = scope.get(OUTCOME, "") or record.outcome
            self._over(record)


def _id_of(scope: Scope, headers: dict[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id", b"")
    return given.decode("latin-1") or drawn_id(scope)


def make_tracer(
    options: TraceOptions, service: str, worker: str = "", share: float | None = None
) -> Tracer | None:
    """None without --trace-to: nothing of OpenTelemetry is imported then. `share` of the requests
    without a trace is traced, that of the options by default. `ConfigError` if the library is not
    installed, or the file cannot be written."""
    if not options.trace_to:
        return None
    # Both are asked for: the API alone is often there as a dependency of others.
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError("--trace-to needs OpenTelemetry: pip install 'triptych[tracing]'")
    from services.http.tracing import Tracer

    share = options.trace_sample if share is None else share
    return Tracer(service, options.trace_to, share, worker)
