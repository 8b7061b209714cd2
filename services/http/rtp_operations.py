"""RTP-LLM's routes for operators: health checks under the paths that its load balancers ask, and
changes of a running model, `/update` and `/update_eplb_config`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from msgspec import Meta

from protocol.decoding import converted
from protocol.errors import InvalidRequest
from protocol.rtp_requests import json_object
from services.http.bodies import read_body

UPDATE_PATH, EPLB_PATH = "/update", "/update_eplb_config"
_MAX_BODY = 1 << 20  # bytes: names and paths of adapters
Adapters = dict[str, str]
Load = Callable[[Request, Adapters], Awaitable[Response]]


class Peft(msgspec.Struct):
    lora_info: Adapters


class Update(msgspec.Struct):
    peft_info: Peft | None = None
    models_info: dict[str, Any] | None = None
    sampler_info: dict[str, Any] | None = None


class Eplb(msgspec.Struct):
    mode: Literal["NONE", "STATS", "EPLB", "ALL"]
    update_time: Annotated[int, Meta(ge=0)] = 0


def rtp_updates(check: Callable[[Request], None], load: Load) -> APIRouter:
    """`check` raises if the caller may not change anything; `load` has workers load LoRA adapters,
    given by name and path."""
    routes = APIRouter()

    @routes.post(UPDATE_PATH)
    async def update(request: Request) -> Response:
        """RTP-LLM's update: `{"peft_info": {"lora_info": {NAME: PATH}}}` has workers load LoRA
        adapters."""
        check(request)
        adapters = _adapters(await read_body(request, _MAX_BODY))
        return await load(request, adapters)

    @routes.post(EPLB_PATH)
    async def update_eplb_config(request: Request) -> dict[str, str]:
        """RTP-LLM's balancing of experts, of which there is none here: only NONE is taken."""
        check(request)
        wanted = converted(json_object(await read_body(request, _MAX_BODY)), Eplb, "mode")
        if wanted.mode != "NONE":
            raise _refused("mode", "experts are not balanced here; only NONE is taken")
        return {"status": "ok"}

    return routes


def _adapters(body: bytes) -> Adapters:
    wanted = converted(json_object(body), Update, "peft_info")
    for name in ("models_info", "sampler_info"):
        if getattr(wanted, name):
            raise _refused(name, "start other workers with what is to be served")
    if wanted.peft_info is None or not wanted.peft_info.lora_info:
        raise InvalidRequest(
            "peft_info.lora_info must name at least one adapter; /v1/unload_lora_adapter takes one"
            " away",
            param="peft_info.lora_info",
        )
    return wanted.peft_info.lora_info


def _refused(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: {why}", param=param, code="unsupported_parameter")


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
