"""`/worker_status` and `/cache_status` of a worker, as RTP-LLM's master asks for them."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.rtp_status import (
    CACHE_PATHS,
    WORK_PATHS,
    CacheStatus,
    StatusQuery,
    WorkStatus,
    parse_query,
)
from services.engine.messages import Statistics
from services.http.bodies import read_body
from services.membership.rtp_status import cache_status, work_status
from services.worker.worker import Worker

_MAX_BODY = 1 << 20


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    async def asked(request: Request) -> tuple[StatusQuery, Statistics]:
        body = await read_body(request, _MAX_BODY)
        query = parse_query(body, dict(request.query_params))
        return query, await worker.engine.statistics(keys_since=query.keys_since)

    async def cache(request: Request) -> Response:
        """The prefix cache: its room, and its keys if they have changed."""
        _, statistics = await asked(request)
        return _json(_cache(worker, statistics))

    async def work(request: Request) -> Response:
        """What runs, what has ended since, and the prefix cache."""
        query, statistics = await asked(request)
        return _json(_work(worker, request.url.port or 80, statistics, query.ended_since))

    for method in ("GET", "POST"):  # apart: operations of one route would have one name
        for path in CACHE_PATHS:
            routes.add_api_route(path, cache, methods=[method])
        for path in WORK_PATHS:
            routes.add_api_route(path, work, methods=[method])
    return routes


def _cache(worker: Worker, statistics: Statistics) -> CacheStatus:
    return cache_status(
        statistics.load,
        worker.engine.ready.block_size,
        statistics.cache_version,
        statistics.cached_keys,
    )


def _work(worker: Worker, port: int, statistics: Statistics, since: int) -> WorkStatus:
    return work_status(
        worker.serving,
        port,
        statistics.load,
        statistics.counters,
        worker.tasks,
        since=since,
        room=worker.config.max_num_queued - worker.in_flight,
        alive=not worker.leaving and not worker.engine.outage,
        grpc_port=worker.grpc_port,
        cache=_cache(worker, statistics) if "language" in worker.role.parts else None,
    )


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
