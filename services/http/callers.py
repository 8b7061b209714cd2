"""What a request's headers say of who asks, and how long they will wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
from blake3 import blake3

from protocol.errors import InvalidRequest
from services.frontend.render import RenderedRequest

TIMEOUT_HEADER = "x-request-timeout"
SESSION_HEADER = "x-session-id"
_MAX_CHARS = 256


def seconds_of(text: str) -> float:
    """The value of `X-Request-Timeout`."""
    try:
        wanted = float(text)
    except ValueError:
        wanted = 0.0
    if not 0.0 < wanted < float("inf"):
        raise InvalidRequest(
            "X-Request-Timeout must be a positive number of seconds", param="X-Request-Timeout"
        )
    return wanted


def with_caller(rendered: RenderedRequest, headers: Mapping[str, str]) -> RenderedRequest:
    """The request with its deadline (`X-Request-Timeout`), its conversation (`X-Session-Id`) and
    its tenant, which is named by a digest of the `Authorization` header."""
    generate = rendered.generate
    if (timeout := headers.get(TIMEOUT_HEADER)) is not None:
        generate = msgspec.structs.replace(generate, deadline_s=seconds_of(timeout))
    given = headers.get("authorization", "")
    tenant = blake3(given.encode()).hexdigest()[:16] if given else ""
    session = headers.get(SESSION_HEADER, "")[:_MAX_CHARS]
    return replace(rendered, generate=generate, tenant=tenant, session=session)
