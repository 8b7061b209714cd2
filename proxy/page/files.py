"""The page's own files: hand-written HTML, CSS and ES modules, sent as they lie here."""

from __future__ import annotations

from importlib.resources import files
from types import MappingProxyType

from blake3 import blake3
from fastapi import APIRouter, Request, Response

from services.http.version import version

ROOT = "/"
_FOLDER = "/page"
_KINDS = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
    }
)
# Nothing from elsewhere, no script or style inside the HTML, and no other site's frame around it.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = MappingProxyType(
    {
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
)
_SAID = """Triptych {version}

The OpenAI API is under /v1, a description of all routes at /docs.
{page}"""
_WITH_PAGE = "A browser gets a page here.\n"


def _static() -> dict[str, tuple[bytes, str]]:
    """Content and type of each file of the page, by its path under the proxy."""
    found = {}
    for entry in files("proxy.page").joinpath("static").iterdir():
        kind = _KINDS.get(entry.name[entry.name.rfind(".") :])
        if kind is not None:
            path = ROOT if entry.name == "index.html" else f"{_FOLDER}/{entry.name}"
            found[path] = entry.read_bytes(), kind
    return found


def paths() -> frozenset[str]:
    """Where the page and its files are. They tell nothing of this proxy, so they need no key."""
    return frozenset((ROOT, *_static()))


def showing(*, page: bool) -> APIRouter:
    """The routes of the files. A client that asks for / without HTML in Accept, as a load
    balancer does, gets two lines of text, with or without a page."""
    routes = APIRouter(include_in_schema=False)
    static = _static() if page else {}
    text = _SAID.format(version=version(), page=_WITH_PAGE if page else "")

    def add(path: str, content: bytes, kind: str) -> None:
        tag = f'"{blake3(content).hexdigest()[:32]}"'
        headers = {**HEADERS, "etag": tag, "content-type": kind}

        async def show(request: Request) -> Response:
            if path == ROOT and "text/html" not in request.headers.get("accept", ""):
                return Response(text, media_type="text/plain", headers={"vary": "accept"})
            # A cache must not give a browser the text, or a load balancer the page.
            told = {**headers, "vary": "accept"} if path == ROOT else headers
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=told)
            return Response(content, headers=told)

        routes.add_api_route(path, show, methods=["GET", "HEAD"])

    for path, (content, kind) in static.items():
        add(path, content, kind)
    if not page:

        @routes.api_route(ROOT, methods=["GET", "HEAD"])
        async def say() -> Response:
            return Response(text, media_type="text/plain")

    return routes
