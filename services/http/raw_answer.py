"""An error answer where there is no request to answer."""

from __future__ import annotations

import http
import secrets

import msgspec

from protocol.errors import TriptychError


def http_response(error: TriptychError) -> bytes:
    """It closes its connection."""
    body = msgspec.json.encode(error.to_openai())
    status = http.HTTPStatus(error.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {secrets.token_hex(16)}\r\n"
        f"connection: close\r\n\r\n"
    )
    return head.encode() + body
