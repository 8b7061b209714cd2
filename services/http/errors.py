"""Errors of the tree as OpenAI error answers, and the request id on every answer."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.anthropic import MESSAGES_PATH
from protocol.errors import InternalError, TriptychError
from protocol.rtp_requests import RAW_PATH
from services.frontend import rtp_answer
from services.frontend.anthropic.answer import error_of

OUTCOME = "triptych.outcome"
"""Where the scope of a request has the code of the error that it was answered with."""
_DRAWN = "triptych.request_id"
logger = logging.getLogger(__name__)


def install(app: FastAPI, observe: Callable[[TriptychError], None]) -> None:
    """Answer every exception in OpenAI's form; `observe` is told of each."""

    @app.exception_handler(TriptychError)
    async def known(request: Request, error: TriptychError) -> Response:
        observe(error)
        request.scope[OUTCOME] = error.code
        if request.url.path.startswith(MESSAGES_PATH):
            return error_response(error, error_of(error))
        if request.url.path == RAW_PATH:
            return error_response(error, rtp_answer.error_of(error))
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        found = TriptychError(f"{request.method} {request.url.path}: {error.detail}")
        found.status, found.code = error.status_code, "invalid_request"
        found.type = "invalid_request_error"
        return error_response(found)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        logger.error("%s %s", request.method, request.url.path, exc_info=error)
        found = InternalError("internal error")
        observe(found)
        request.scope[OUTCOME] = found.code
        return error_response(found)


def error_response(error: TriptychError, told: dict[str, Any] | None = None) -> JSONResponse:
    """`told`: its body, OpenAI's form by default."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return JSONResponse(told or error.to_openai(), status_code=error.status, headers=headers)


def drawn_id(scope: Scope) -> str:
    """This server's own name of a request."""
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
                message["headers"] = [*message["headers"], *names]
            await send(message)

        await self._app(scope, receive, named)
