"""RTP-LLM's `/worker_status` and `/cache_status`: what a worker does and holds, from a version on.

Field names are RTP-LLM's. A question names the newest version it knows, and is answered with what
is newer; the names of the versions are taken in the spelling of RTP-LLM and in the right one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.errors import InvalidRequest
from protocol.generate import field_of
from protocol.registry import Load
from services.engine.messages import Statistics
from services.http.openai import read_body
from services.worker.tasks import TaskInfo
from services.worker.worker import Worker

_NAMES = MappingProxyType({"encode": "vit"})
_SPELLINGS = MappingProxyType(
    {
        "lastest_cache_version": "latest_cache_version",
        "latest_finised_version": "latest_finished_version",
    }
)
_SIGN = 1 << 63


class StatusQuery(msgspec.Struct):
    """-1 or None: nothing is known yet."""

    latest_cache_version: int | None = -1
    latest_finished_version: int | None = -1


class CacheStatus(msgspec.Struct):
    """Sizes in tokens. `cached_keys`: block keys as signed 64-bit numbers, None if the cache is as
    it was at the version that was asked for."""

    available_kv_cache: int = -1
    total_kv_cache: int = -1
    block_size: int = -1
    version: int = -1
    cached_keys: list[int] | None = None


class WorkStatus(msgspec.Struct):
    """`version`: how many requests have ended; `available_concurrency`: how many more may come."""

    role: str
    server_port: int
    http_proto_port: int
    grpc_proto_port: int
    available_concurrency: int
    running_task_info: list[TaskInfo]
    finished_task_list: list[TaskInfo]
    step_latency_ms: float
    iterate_count: int
    dp_size: int
    tp_size: int
    alive: bool
    version: int
    cache_status: CacheStatus | None = None
    profile_meta: dict[str, Any] | None = None


def parse_query(body: bytes, params: dict[str, str]) -> StatusQuery:
    """The question as a JSON object, or as URL parameters. `InvalidRequest` if it is neither."""
    try:
        fields: dict[str, Any] = dict(params)
        if body:
            fields |= msgspec.json.decode(body, type=dict[str, Any])
        named = {_SPELLINGS.get(name, name): value for name, value in fields.items()}
        return msgspec.convert(named, StatusQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error), param=field_of(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"malformed JSON: {error}", code="malformed_json") from None


def cache_status(statistics: Statistics, block_size: int) -> CacheStatus:
    load, keys = statistics.load, statistics.cached_keys
    return CacheStatus(
        available_kv_cache=load.free_blocks * block_size,
        total_kv_cache=load.total_blocks * block_size,
        block_size=block_size,
        version=statistics.cache_version,
        cached_keys=None if keys is None else [_signed(key) for key in keys],
    )


def _signed(key: int) -> int:
    return key - 2 * _SIGN if key >= _SIGN else key


def work_status(worker: Worker, port: int, statistics: Statistics, since: int) -> WorkStatus:
    """`since`: requests that had ended when the caller last asked."""
    generates = "language" in worker.role.parts
    counters = statistics.counters
    return WorkStatus(
        role=_NAMES.get(worker.role.name, worker.role.name),
        server_port=port,
        http_proto_port=port,
        grpc_proto_port=port + 1,
        available_concurrency=max(0, worker.config.max_num_queued - worker.in_flight),
        running_task_info=worker.tasks.running(),
        finished_task_list=worker.tasks.ended(since),
        step_latency_ms=_step_ms(statistics.load),
        iterate_count=int(counters.get("steps", counters.get("encoder_runs", 0))),
        dp_size=1,
        tp_size=1,
        alive=not worker.draining and not worker.engine.dead.is_set(),
        version=worker.tasks.version,
        cache_status=cache_status(statistics, worker.engine.ready.block_size)
        if generates
        else None,
    )


def _step_ms(load: Load) -> float:
    """A decode step as it is, from what was measured."""
    rates = load.rates
    each = load.running * rates.decode_ms_per_request
    return rates.decode_base_ms + each + load.context_tokens * rates.decode_ms_per_context_token


def router(worker: Worker) -> APIRouter:
    routes = APIRouter()

    async def asked(request: Request) -> tuple[StatusQuery, Statistics]:
        body = await read_body(request, worker.config.max_body_bytes)
        query = parse_query(body, dict(request.query_params))
        known = query.latest_cache_version
        keys_since = -1 if known is None else known
        return query, await worker.engine.statistics(keys_since=keys_since)

    @routes.api_route("/cache_status", methods=["GET", "POST"])
    @routes.api_route("/rtp_llm/cache_status", methods=["GET", "POST"])
    async def cache(request: Request) -> Response:
        """The prefix cache: its room, and its keys if they have changed."""
        _, statistics = await asked(request)
        return _json(cache_status(statistics, worker.engine.ready.block_size))

    @routes.api_route("/worker_status", methods=["GET", "POST"])
    @routes.api_route("/rtp_llm/worker_status", methods=["GET", "POST"])
    async def work(request: Request) -> Response:
        """What runs, what has ended since, and the prefix cache."""
        query, statistics = await asked(request)
        known = query.latest_finished_version
        since = -1 if known is None else known
        return _json(work_status(worker, request.url.port or 80, statistics, since))

    return routes


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
