"""What web pages may ask of a server from a user's browser: nothing, unless a flag says so.

A page can send a "simple" request to any server that its reader reaches, a local one too, without
being asked for leave (https://fetch.spec.whatwg.org/#cors-preflight-fetch); it only cannot read the
answer. What a body asks for is therefore done only if it is said to be JSON or msgpack, which no
simple request is; a request without a body, or with a form for a route that takes forms, is turned
away if it says that another page sent it, as browsers do for every POST.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from protocol.errors import RequestError, UnsupportedMedia
from protocol.fleet_key import HEADER
from protocol.server_options import CorsOptions, parse_words
from services.http.errors import OUTCOME, error_response

JSON = b"application/json"
_STRUCTURED = (JSON, b"application/msgpack", b"application/x-msgpack")
_FORM = b"multipart/form-data"
_FORMS = "/v1/audio/"  # routes that take forms
_KEYS = (HEADER.encode(), b"x-api-key")  # no page can send these unasked either
_SAFE = ("GET", "HEAD", "OPTIONS")


class ForeignPage(RequestError):
    """403: a web page of another origin has sent it."""

    status = 403
    code = "origin_not_allowed"


def is_structured(content_type: bytes) -> bool:
    """Whether a body is said to be JSON or msgpack."""
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in _STRUCTURED or kind.endswith(b"+json")


def is_form(content_type: bytes) -> bool:
    """Whether a body is said to be a form with files."""
    return content_type.partition(b";")[0].strip().lower() == _FORM


def not_form(content_type: str) -> UnsupportedMedia:
    return UnsupportedMedia(
        f"Content-Type must be multipart/form-data, not {content_type[:64] or 'nothing'}",
        code="unsupported_content_type",
    )


def not_json(content_type: bytes) -> UnsupportedMedia:
    shown = content_type[:64].decode("latin-1") or "nothing"
    return UnsupportedMedia(
        f"Content-Type must be application/json, not {shown}", code="unsupported_content_type"
    )


class StructuredOnly:
    """ASGI application in front of another, which gets requests that change or ask something only
    if no web page can have sent them unasked."""

    def __init__(self, app: ASGIApp, origins: Sequence[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = None
        if scope["type"] == "http" and scope["method"] not in _SAFE:
            error = self._refusal(scope["path"], dict(scope["headers"]))
        if error is None:
            await self._app(scope, receive, send)
        else:
            scope[OUTCOME] = error.code
            await error_response(error)(scope, receive, send)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> RequestError | None:
        content_type = headers.get(b"content-type", b"")
        if is_structured(content_type) or any(name in headers for name in _KEYS):
            return None
        # A form sends no preflight, and neither does a body without a type.
        has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if has_body and not (path.startswith(_FORMS) and is_form(content_type)):
            return not_json(content_type)
        origin = headers.get(b"origin")
        if origin is None or self._allows(origin.decode("latin-1"), headers.get(b"host", b"")):
            return None
        return ForeignPage("a web page of another origin may not ask for that (--allowed-origins)")

    def _allows(self, origin: str, host: bytes) -> bool:
        own = urlsplit(origin).netloc == host.decode("latin-1")
        return own or origin in self._origins or "*" in self._origins


def for_browsers(app: ASGIApp, options: CorsOptions) -> ASGIApp:
    """`app` for the pages that the options allow."""
    origins = parse_words(options.allowed_origins)
    guarded = StructuredOnly(app, origins)
    if not origins:
        return guarded
    # Around the guard: its refusals need these headers too, for a page to read them.
    return CORSMiddleware(
        guarded,
        allow_origins=origins,
        allow_methods=parse_words(options.allowed_methods),
        allow_headers=parse_words(options.allowed_headers),
        allow_credentials=options.allow_credentials,
    )


def cors_headers(options: CorsOptions, origin: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """What an answer that no middleware sees says to a page of `origin`."""
    origins = parse_words(options.allowed_origins)
    every, name = "*" in origins, origin.decode("latin-1")
    if not origin or not (every or name in origins):
        return ()
    allowed = b"*" if every and not options.allow_credentials else origin
    # `*` with credentials is refused by browsers: the origin itself is named then.
    found = [(b"access-control-allow-origin", allowed), (b"vary", b"Origin")]
    if options.allow_credentials:
        found.append((b"access-control-allow-credentials", b"true"))
    return tuple(found)
