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

from protocol.decoding import ANY_OBJECT, accepted

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
    """One request, running or ended."""

    request_id: str  # the client's id
    input_length: int  # tokens of the prompt
    prefix_length: int = 0  # prompt tokens whose KV was reused
    waiting_time_ms: int = 0  # milliseconds to the first output
    iterate_count: int = 0  # steps that had an output
    end_time_ms: int = -1  # milliseconds of the wall clock, -1 while it runs
    dp_rank: int = 0  # always 0: workers are not data-parallel
    # how far the request is
    phase: Literal["PENDING", "RECEIVED", "KV_ALLOCATED", "RUNNING"] = "RECEIVED"
    execution_time_ms: int = 0  # milliseconds since its first output
    error_info: str = ""  # why it failed, empty if it did not


class WorkStatus(msgspec.Struct):
    """A worker's requests and sizes."""

    role: str  # RTP-LLM's name of the role
    server_port: int  # port of the HTTP server
    http_proto_port: int  # the same
    grpc_proto_port: int  # where --rtp-grpc-port listens, 0: nothing does
    available_concurrency: int  # how many more requests may come
    running_task_info: list[TaskInfo]  # requests in progress
    finished_task_list: list[TaskInfo]  # requests that ended since the version asked for
    step_latency_ms: float  # mean milliseconds of a step
    iterate_count: int  # steps so far
    dp_size: int  # data-parallel ranks
    tp_size: int  # tensor-parallel ranks
    alive: bool  # whether the engine answers
    version: int  # how many requests have ended
    cache_status: CacheStatus | None = None  # KV cache, if it was asked for
    profile_meta: dict[str, Any] | None = None  # not used


def parse_query(body: bytes, params: dict[str, str]) -> StatusQuery:
    """The question as a JSON object, or as URL parameters. `InvalidRequest` if it is neither."""
    return accepted(partial(_query, params), body)


def _query(params: dict[str, str], body: bytes) -> StatusQuery:
    fields: dict[str, Any] = dict(params)
    if body:
        fields |= ANY_OBJECT.decode(body)
    named = {_SPELLINGS.get(name, name): value for name, value in fields.items()}
    return msgspec.convert(named, StatusQuery, strict=False)
