"""What the admin key allows to change while a process runs."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request

from protocol.decoding import accepted
from protocol.errors import Unauthorized
from protocol.logs import set_log_level
from services.http.bodies import read_body

LOG_LEVEL_PATH = "/set_log_level"
_MAX_BODY = 1 << 12  # bytes: `{"level": "warning"}` and no more


class LogLevel(msgspec.Struct):
    """Body of `POST /set_log_level`."""

    level: Literal["debug", "info", "warning", "error"]


class RtpLogLevel(msgspec.Struct):
    """The same as RTP-LLM's clients write it."""

    log_level: str


def check_admin_key(request: Request, key: str) -> None:
    """`Unauthorized` unless `X-API-Key` is `key`; nothing is if there is none."""
    given = request.headers.get("x-api-key", "")
    # As bytes: `compare_digest` takes no text with characters beyond ASCII.
    if not key or not hmac.compare_digest(given.encode(), key.encode()):
        raise Unauthorized(
            "X-API-Key is not the admin key"
            if key
            else "the route is closed: start with --admin-api-key"
        )


def _level_of(body: bytes) -> LogLevel:
    fields = msgspec.json.decode(body, type=dict[str, Any])
    if "log_level" in fields and "level" not in fields:
        name = msgspec.convert(fields, RtpLogLevel).log_level.lower()
        fields = {"level": "debug" if name == "trace" else name}
    return msgspec.convert(fields, LogLevel)


def log_levels(
    check: Callable[[Request], None], tell: Callable[[str], None] = lambda level: None
) -> APIRouter:
    """The route that sets the level; `check` raises if the caller may not. `tell` passes it on to
    a further process of the server, and raises if there is none."""
    routes = APIRouter()

    @routes.post(LOG_LEVEL_PATH)
    async def change_log_level(request: Request) -> dict[str, str]:
        """Write lines from this level on: `{"level": "debug"}`, until the process ends. RTP-LLM's
        `{"log_level": "DEBUG"}` does the same; its TRACE is debug."""
        check(request)
        body = await read_body(request, _MAX_BODY)
        wanted = accepted(_level_of, body).level
        # First: if the further process cannot be told, neither of them changes its level.
        tell(wanted)
        before = set_log_level(wanted)
        return {"level": wanted, "before": before}

    return routes
