"""Wire form of RTP-LLM's `/worker_status` and `/cache_status`.

Field names are RTP-LLM's. A question names the newest version it knows, and is answered with what
is newer; the names of the versions are taken in the spelling of RTP-LLM and in the right one.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.decoding import accepted

CACHE_PATHS = ("/cache_status", "/rtp_llm/cache_status")
WORK_PATHS = ("/worker_status", "/rtp_llm/worker_status")
_Version = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
_SPELLINGS = MappingProxyType(
    {
        "lastest_cache_version": "latest_cache_version",
        "latest_finised_version": "latest_finished_version",
    }
)


class StatusQuery(msgspec.Struct):
    """-1 or None: nothing is known yet."""

    latest_cache_version: _Version | None = -1
    latest_finished_version: _Version | None = -1

    @property
    def keys_since(self) -> int:
        """The version of the cache that is known, -1 if none is."""
        return -1 if self.latest_cache_version is None else self.latest_cache_version

    @property
    def ended_since(self) -> int:
        """How many requests are known to have ended, -1 if nothing is known."""
        return -1 if self.latest_finished_version is None else self.latest_finished_version


class CacheStatus(msgspec.Struct):
    """Sizes in tokens. `cached_keys`: block keys as signed 64-bit numbers, None if the cache is as
    it was at the version that was asked for."""

    available_kv_cache: int = -1
    total_kv_cache: int = -1
    block_size: int = -1
    version: int = -1
    cached_keys: list[int] | None = None


class TaskInfo(msgspec.Struct):
    """`waiting_time_ms`: to the first output; `iterate_count`: steps that had one; `end_time_ms` of
    the wall clock, -1 while it runs; `prefix_length`: tokens reused."""

    request_id: str
    input_length: int
    prefix_length: int = 0
    waiting_time_ms: int = 0
    iterate_count: int = 0
    end_time_ms: int = -1
    dp_rank: int = 0
    phase: Literal["PENDING", "RECEIVED", "KV_ALLOCATED", "RUNNING"] = "RECEIVED"
    execution_time_ms: int = 0
    error_info: str = ""


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
    return accepted(partial(_query, params), body)


def _query(params: dict[str, str], body: bytes) -> StatusQuery:
    fields: dict[str, Any] = dict(params)
    if body:
        fields |= msgspec.json.decode(body, type=dict[str, Any])
    named = {_SPELLINGS.get(name, name): value for name, value in fields.items()}
    return msgspec.convert(named, StatusQuery, strict=False)
