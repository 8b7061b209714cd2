"""A client's request as the hot path reads it: whose it is, what it must bring, what goes on.

The hot path has its own checks: a relayed request passes none of the application's middleware.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from protocol.server_options import CorsOptions
from services.http.access import ApiKeys
from services.http.browsers import JSON, cors_headers, is_structured, not_json
from services.http.callers import MAX_SESSION, SESSION_HEADER, TIMEOUT_HEADER, seconds_of
from services.http.records import drawn_id, traced_headers

_MAX_ID = 128
# Servers disagree about what other bytes say, and some fail at them: a client's header must not be
# what a worker is charged with.
_PLAIN = re.compile(rb"[\x20-\x7e]+").fullmatch
_SESSION, _TIMEOUT = SESSION_HEADER.encode(), TIMEOUT_HEADER.encode()
Pairs = tuple[tuple[bytes, bytes], ...]
_ROUTES = tuple(
    f"POST {path}{end}".encode() for path in (CHAT_PATH, COMPLETIONS_PATH) for end in " ?"
)
_LONGEST = max(map(len, _ROUTES))


def is_relayed(data: bytes) -> bool | None:
    """Whether a request that begins so is for a relayed route; None if it is too early to tell."""
    if data.startswith(_ROUTES):
        return True
    if len(data) < _LONGEST and any(route.startswith(data) for route in _ROUTES):
        return None
    return False


class Entry:
    """What a request must bring before it is taken, and what its answer says to browsers. Looked
    at once a request's headers are there; they are by lower-case name."""

    def __init__(self, keys: ApiKeys, cors: CorsOptions) -> None:
        self._keys = keys if keys else None
        self._cors = cors if cors.allowed_origins else None

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """`Unauthorized` without a key where one is needed, `UnsupportedMedia` unless the body is
        said to be JSON."""
        if self._keys is not None:
            error = self._keys.refusal(headers.get(b"authorization", b""))
            if error is not None:
                raise error
        content_type = headers.get(b"content-type", b"")
        if content_type != JSON and not is_structured(content_type):
            raise not_json(content_type)

    def extra(self, headers: Mapping[bytes, bytes]) -> Pairs:
        """Header fields of the answer."""
        return () if self._cors is None else cors_headers(self._cors, headers.get(b"origin", b""))


def request_id_of(headers: Mapping[bytes, bytes]) -> bytes:
    """The client's, or one that is drawn."""
    given = headers.get(b"x-request-id")
    if given and _PLAIN(given[:_MAX_ID]):
        return given[:_MAX_ID]
    return b"%032x" % random.getrandbits(128)


def named_id(named: Any, drawn: bytes) -> bytes:
    """What workers call a request whose body has `named` as its `request_id`: unique even if
    clients repeat theirs. What is no printable ASCII is left out."""
    if not isinstance(named, str):
        return drawn
    given = named.encode(errors="replace")[: _MAX_ID - 9]
    return b"%b-%b" % (given, drawn[:8]) if _PLAIN(given) else drawn


@dataclass
class ClientRequest:
    """A request whose body is complete. Of a header that is not of printable ASCII nothing goes on
    to workers."""

    path: str
    headers: dict[bytes, bytes]  # by lower-case name
    body: bytes
    request_id: bytes = field(init=False)  # the client's, or one that is drawn
    _name: bytes = field(init=False)  # what workers call it
    _fields: bytes = field(init=False)  # further header lines for workers

    def __post_init__(self) -> None:
        self.request_id = self._name = request_id_of(self.headers)
        given = self.authorization
        self._fields = b"authorization: %b\r\n" % given if _PLAIN(given) else b""

    @property
    def is_chat(self) -> bool:
        return self.path == CHAT_PATH

    @property
    def authorization(self) -> bytes:
        return self.headers.get(b"authorization", b"")

    @property
    def session(self) -> str:
        """The conversation that the client says the request belongs to."""
        given = self.headers.get(_SESSION)
        return given.decode("latin-1")[:MAX_SESSION] if given else ""

    def forget_authorization(self) -> None:
        """The client has said who it is to this proxy alone."""
        line = b"authorization: %b\r\n" % self.headers.pop(b"authorization", b"")
        self._fields = self._fields.replace(line, b"")

    def trace(self, headers: Mapping[str, str]) -> None:
        """Workers are told of a trace: of this proxy's span, or of the client's."""
        for name, value in headers.items():
            self._fields += f"{name}: {value}\r\n".encode()

    def authorize(self, value: bytes) -> None:
        """For a client that does not say who it is."""
        if value and not self.authorization:
            self.headers[b"authorization"] = value
            self._fields += b"authorization: %b\r\n" % value

    def name(self, named: Any) -> None:
        """`named`: the body's `request_id`; a header goes before it."""
        if b"x-request-id" not in self.headers:
            self._name = named_id(named, self.request_id)

    def fields(self, suffix: bytes = b"") -> bytes:
        """Header lines that go to workers: the id, and what must not get lost on the way."""
        return b"x-request-id: %b%b\r\n%b" % (self._name, suffix, self._fields)

    def timeout_s(self, longest: float) -> float:
        """Seconds that the request may take: the client's wish, but not more than `longest`."""
        given = self.headers.get(_TIMEOUT)
        if given is None:
            return longest
        return min(seconds_of(given.decode("latin-1")), longest)


def for_worker(request: Request, *, keyed: bool) -> dict[str, str]:
    """The request's id, its trace, and who asks. `keyed`: the client's key is for the proxy alone.
    The content type is the caller's to add."""
    given = _plain(request, "x-request-id").get("x-request-id", "")[:_MAX_ID]
    found = {"x-request-id": given or drawn_id(request.scope)}
    found |= traced_headers(dict(request.headers.raw))
    return found if keyed else found | _plain(request, "authorization")


def _plain(request: Request, name: str) -> dict[str, str]:
    """A header of printable ASCII; servers disagree about others."""
    value = request.headers.get(name, "")
    return {name: value} if value and value.isascii() and value.isprintable() else {}
