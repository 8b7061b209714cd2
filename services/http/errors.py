"""Errors of the tree as error answers, in the form of the API that was asked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from protocol.anthropic import MESSAGES_PATH
from protocol.errors import InternalError, TriptychError
from protocol.rtp_requests import RAW_PATH
from services.frontend.answers.rtp import rtp_error
from services.frontend.anthropic.answer import message_error

OUTCOME = "triptych.outcome"
"""Where the scope of a request has the code of the error that it was answered with."""
logger = logging.getLogger(__name__)


def install(app: FastAPI, observe: Callable[[TriptychError], None]) -> None:
    """Answer every exception in OpenAI's form; `observe` is told of each."""

    @app.exception_handler(TriptychError)
    async def known(request: Request, error: TriptychError) -> Response:
        observe(error)
        request.scope[OUTCOME] = error.code
        if request.url.path.startswith(MESSAGES_PATH):
            return error_response(error, message_error(error))
        if request.url.path == RAW_PATH:
            return error_response(error, rtp_error(error))
        return error_response(error)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, error: HTTPException) -> Response:
        # FastAPI has its own form for 404 and 405; clients of OpenAI read only theirs.
        found = TriptychError(f"{request.method} {request.url.path}: {error.detail}")
        found.status, found.code = error.status_code, "invalid_request"
        found.type = "invalid_request_error"
        return error_response(found)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:
        # The text of an unknown exception may hold a prompt: the log has it, the client does not.
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        found = InternalError("internal error")
        observe(found)
        request.scope[OUTCOME] = found.code
        return error_response(found)


def error_response(error: TriptychError, told: dict[str, Any] | None = None) -> JSONResponse:
    """`told`: its body, OpenAI's form by default."""
    headers = {}
    if error.retry_after_s is not None:
        # Whole seconds (RFC 9110, 10.2.3); 0 would have clients come back at once.
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    return JSONResponse(told or error.to_openai(), status_code=error.status, headers=headers)
