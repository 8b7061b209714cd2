"""/docs without any other server: Swagger UI from an installed package.

FastAPI's own page loads it from a content delivery network, by a script inside the HTML; here
everything comes from this process, so that the page works offline and under a strict policy.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse
from starlette.types import Lifespan

from services.http.api_bodies import Table, add_bodies

PATH = "/docs"
_PACKAGE = "fastapi_swagger.resources"
_KINDS = MappingProxyType(
    {
        "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
        "swagger-ui.css": "text/css; charset=utf-8",
        "favicon-32x32.png": "image/png",
    }
)
# Swagger UI styles some elements by attributes, and has its icons in data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = MappingProxyType(
    {"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
)
_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({url: "openapi.json", dom_id: "#docs", deepLinking: true});
"""


class _Described(FastAPI):
    """`bodies`: what its routes take and answer."""

    def __init__(self, bodies: Table, **options: Any) -> None:
        super().__init__(docs_url=None, redoc_url=None, **options)
        self._bodies = bodies
        self._document: dict[str, Any] | None = None

    def include_router(self, router: APIRouter) -> None:  # type: ignore[override]
        """Takes the routes as they are. FastAPI would build each of them a second time, when the
        first request comes, and compare each request with them twice."""
        self.router.routes += router.routes

    def openapi(self) -> dict[str, Any]:
        """Made when it is first asked for: most processes are never asked."""
        if self._document is None:
            self._document = super().openapi()
            add_bodies(self._document, self._bodies)
        return self._document


def described(
    title: str, version: str, bodies: Table, lifespan: Lifespan[FastAPI] | None = None
) -> FastAPI:
    """An application whose routes are described at /docs."""
    app = _Described(bodies, title=title, version=version, lifespan=lifespan)
    html = _HTML.format(title=escape(title))

    @app.get(PATH, include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(html, headers=dict(_HEADERS))

    @app.get(f"{PATH}/start.js", include_in_schema=False)
    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=dict(_HEADERS))

    # A function of its own: a closure in the loop would see the last name only.
    def add(name: str, kind: str) -> None:
        async def show() -> Response:
            return Response(_content(name), media_type=kind, headers=dict(_HEADERS))

        app.add_api_route(f"{PATH}/{name}", show, include_in_schema=False)

    for name, kind in _KINDS.items():
        add(name, kind)
    return app


@cache
def _content(name: str) -> bytes:
    """Read when it is first asked for: most processes are never asked."""
    return files(_PACKAGE).joinpath(name).read_bytes()
