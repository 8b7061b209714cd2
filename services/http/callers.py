"""What a request's headers say of who asks, and how long they will wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blake3 import blake3
from starlette.requests import Request

from protocol.errors import InvalidRequest
from services.frontend.media.lookups import Caller
from services.frontend.spec import RenderedRequest
from services.http.records import record_of
from services.http.streams import Deadline

TIMEOUT_HEADER = "x-request-timeout"
SESSION_HEADER = "x-session-id"
MAX_SESSION = 256  # characters: it is kept by the master for each session


def seconds_of(text: str) -> float:
    """The value of `X-Request-Timeout`."""
    try:
        wanted = float(text)
    except ValueError:
        wanted = 0.0
    # NaN is refused too: it is neither above nor below anything.
    if not 0.0 < wanted < float("inf"):
        raise InvalidRequest(
            "X-Request-Timeout must be a positive number of seconds", param="X-Request-Timeout"
        )
    return wanted


def deadline_of(headers: Mapping[str, str], longest_s: float | None) -> Deadline:
    """What `X-Request-Timeout` allows from here on, but not more than `longest_s`."""
    given = headers.get(TIMEOUT_HEADER)
    wanted = None if given is None else seconds_of(given)
    if wanted is None or longest_s is None:
        return Deadline.after(longest_s if wanted is None else wanted)
    return Deadline.after(min(wanted, longest_s))


def with_caller(rendered: RenderedRequest, request: Request, deadline: Deadline) -> RenderedRequest:
    """The request with its record, its deadline, its conversation (`X-Session-Id`, or as the body
    says) and its tenant, which is named by a digest of the `Authorization` header, or of
    `X-Api-Key`."""
    headers, record = request.headers, record_of(request.scope)
    record.request_id, record.model = rendered.generate.request_id, rendered.output.model
    session = headers.get(SESSION_HEADER, rendered.session)[:MAX_SESSION]
    generate = deadline.bounding(rendered.generate)
    tenant = _tenant(headers)
    return replace(rendered, generate=generate, tenant=tenant, session=session, record=record)


def caller_of(request: Request) -> Caller:
    address = request.client.host if request.client else ""
    return Caller(address, _tenant(request.headers))


def _tenant(headers: Mapping[str, str]) -> str:
    return tenant_of((headers.get("authorization") or headers.get("x-api-key", "")).encode())


def tenant_of(key: bytes) -> str:
    """The tenant that a key names, or the header that it stands in; "" of none."""
    # However the header is written by which the key is let in (`ApiKeys.refusal`): a client must
    # not be several tenants by its spelling.
    scheme, _, rest = key.strip().partition(b" ")
    key = rest.strip() if scheme.lower() == b"bearer" else key.strip()
    # A digest: keys must not stand in logs, nor travel to the master.
    return blake3(key).hexdigest()[:16] if key else ""
