"""What of a client's headers goes on to a worker."""

from __future__ import annotations

from fastapi import Request

from services.http.answer_headers import drawn_id
from services.http.records import traced_headers

_MAX_ID = 128


def passed_on(request: Request) -> dict[str, str]:
    """The client's `Authorization`, if servers agree about what it says."""
    return _plain(request, "authorization")


def for_worker(request: Request, *, keyed: bool) -> dict[str, str]:
    """The request's id, its trace, and who asks. `keyed`: the client's key is for the proxy alone.
    The content type is the caller's to add."""
    given = _plain(request, "x-request-id").get("x-request-id", "")[:_MAX_ID]
    found = {"x-request-id": given or drawn_id(request.scope)}
    found |= traced_headers(dict(request.headers.raw))
    return found if keyed else found | passed_on(request)


def _plain(request: Request, name: str) -> dict[str, str]:
    """A header of printable ASCII; servers disagree about others."""
    value = request.headers.get(name, "")
    return {name: value} if value and value.isascii() and value.isprintable() else {}
