"""Health checks under the paths that RTP-LLM's load balancers ask."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

CM2_PATHS = ("/GraphService/cm2_status", "/SearchService/cm2_status")
CHECKED = (
    *(("GET", path) for path in ("/status", *CM2_PATHS)),
    *(("POST", path) for path in ("/health", "/status", "/health_check", *CM2_PATHS)),
)
"""Methods and paths that are answered alike."""


def rtp_health(taking: Callable[[], bool], *, home: bool = True) -> APIRouter:
    """200 and "ok" while requests are to come here, which `taking` says, 503 with an error
    otherwise. `home`: whether `GET /` is such a check too."""
    routes = APIRouter()

    async def check() -> Response:
        """Whether requests had better come here, for RTP-LLM's load balancers."""
        if taking():
            return JSONResponse("ok")
        return JSONResponse({"error": "this server takes no requests, see /health"}, 503)

    for method, path in (*CHECKED, *((("GET", "/"),) if home else ())):
        routes.add_api_route(path, check, methods=[method])
    return routes
