"""RTP-LLM's `worker_status` and `cache_status` at the proxy: what a worker answers, passed on."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.decoding import decoded
from protocol.errors import InvalidRequest, Unavailable, UpstreamError
from protocol.rtp_status import CACHE_PATHS, WORK_PATHS, parse_query
from proxy.fleet.worker import Instance
from proxy.gateway import Gateway
from proxy.upstream.patience import Patience
from services.http.openai import JSON
from services.http.streams import while_connected

_MAX_BODY = 1 << 16
# A status that takes longer is of no use to who balances by it.
_PATIENCE_S = 5.0
_JSON_HEADERS = {"content-type": JSON}


def rtp_status(gateway: Gateway) -> APIRouter:
    """The status routes of one worker, with what the proxy itself has room for."""
    routes = APIRouter()

    def add(path: str) -> None:
        async def status(request: Request, worker: str = "") -> Response:
            """What a worker says of itself: `worker` names it by its URL; otherwise the first one
            that decodes. `frontend_available_concurrency` is of the proxy."""
            async with gateway.bodies.read(request, _MAX_BODY) as body:
                params = {k: v for k, v in request.query_params.items() if k != "worker"}
                query = msgspec.json.encode(parse_query(body, params))
            asked = _worker_at(gateway, worker)
            told = await while_connected(request, _told(gateway, asked, path, query))
            most = gateway.config.max_in_flight
            told["frontend_available_concurrency"] = max(0, most - gateway.in_flight.count)
            told["frontend_concurrency_limit"] = most
            return Response(msgspec.json.encode(told), media_type=JSON)

        for method in ("GET", "POST"):
            routes.add_api_route(path, status, methods=[method])

    for path in (*WORK_PATHS, *CACHE_PATHS):
        add(path)
    return routes


def _worker_at(gateway: Gateway, url: str) -> Instance:
    if url:
        for instance in gateway.fleet.all():
            if instance.url == url.rstrip("/"):
                return instance
        raise InvalidRequest("worker: no such worker", param="worker", code="unknown_instance")
    for instance in gateway.fleet.decode:
        if instance.up:
            return instance
    raise Unavailable("no worker that decodes is up", code="no_worker")


async def _told(gateway: Gateway, worker: Instance, path: str, query: bytes) -> dict[str, Any]:
    patience = Patience.of(_PATIENCE_S)
    opened = gateway.client.opened("POST", worker.url + path, query, _JSON_HEADERS, patience)
    async with opened as answer:
        whole = await answer.whole(gateway.config.max_answer_bytes)
    if whole.status != 200:
        raise UpstreamError(f"{worker.url} has no {path}: it answered {whole.status}")
    return decoded(
        whole.body, dict[str, Any], fail=lambda said: UpstreamError(f"{worker.url}{path}: {said}")
    )
