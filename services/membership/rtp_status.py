"""What a worker answers to RTP-LLM's status questions, from its load and its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol.registry import Load
from protocol.rtp_status import CacheStatus, WorkStatus
from services.membership.tasks import TaskLog

_SIGN = 1 << 63


def cache_status(
    load: Load, block_size: int, version: int, keys: Iterable[int] | None
) -> CacheStatus:
    """`keys`: short keys of the prefix cache, None if they are known at this version already."""
    return CacheStatus(
        available_kv_cache=load.free_blocks * block_size,
        total_kv_cache=load.total_blocks * block_size,
        block_size=block_size,
        version=version,
        cached_keys=None if keys is None else [_signed(key) for key in keys],
    )


def _signed(key: int) -> int:
    # RTP-LLM reads them as int64.
    return key - 2 * _SIGN if key >= _SIGN else key


def work_status(
    role: str,
    port: int,
    load: Load,
    counters: Mapping[str, float],
    tasks: TaskLog,
    *,
    since: int,
    room: int,
    alive: bool,
    cache: CacheStatus | None,
    grpc_port: int = 0,
) -> WorkStatus:
    """`since`: requests that had ended when the caller last asked; `room`: how many more may come;
    `counters`: the engine's; `cache`: None of a worker that only encodes; `grpc_port`: 0 where
    nothing listens."""
    return WorkStatus(
        # Its word for encode workers.
        role="vit" if role == "encode" else role,
        server_port=port,
        http_proto_port=port,
        grpc_proto_port=grpc_port,
        available_concurrency=max(0, room),
        running_task_info=tasks.running(),
        finished_task_list=tasks.ended(since),
        step_latency_ms=_step_ms(load),
        iterate_count=int(counters.get("steps", counters.get("encoder_runs", 0))),
        dp_size=1,
        tp_size=1,
        alive=alive,
        version=tasks.version,
        cache_status=cache,
    )


def _step_ms(load: Load) -> float:
    """A decode step as it is, by the rates of the worker."""
    rates = load.rates
    each = load.running * rates.decode_ms_per_request
    return rates.decode_base_ms + each + load.context_tokens * rates.decode_ms_per_context_token
