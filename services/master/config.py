"""What the master is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.settings import option

_LONGEST_S = 1e9
_LARGEST = 1 << 40


def _some(default: float, help: str, least: float = 0.001) -> Any:
    """A time that cannot be nothing, in seconds."""
    return option(default, help, least=least, most=_LONGEST_S)


def _weight(default: float, help: str, most: float = 1e12) -> Any:
    """Nothing or more."""
    return option(default, help, least=0, most=most)


def _count(default: int, help: str, least: int = 1) -> Any:
    return option(default, help, least=least, most=_LARGEST)


@dataclass(frozen=True)
class MasterConfig:
    """Resolved once at start. Times are seconds unless the name says ms; 0 switches those limits
    off that say so."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(
        7000, "port to listen on, 0 for any free one", env="MASTER_PORT", least=0, most=65535
    )
    lease: float = _some(10.0, "a worker not heard of for so long is forgotten", 0.1)
    policy: str = option(
        "cost",
        "cost, kv, rtp, cache_aware, least_loaded, round_robin, random, or your own module:Class",
    )
    seed: int = option(0, "of random choices, 0 for a different one each time")
    tie_ms: float = _weight(1.0, "cost: workers within so much of the best are drawn by lot")
    tie_ratio: float = _weight(0.02, "cost: as tie_ms, as a share of the best")
    work_weight: float = _weight(0.5, "cost: what computing costs those who come after, per ms")
    overlap_weight: float = _weight(1.0, "kv: weight of missing blocks (Dynamo)")
    temperature: float = _weight(0.0, "kv: of the softmax over costs, 0 for the least (Dynamo)")
    rtp_hit_weight: float = _weight(0.3, "rtp: cost of a cached token, as a share of a missing one")
    rtp_slack: float = _weight(0.1, "rtp: workers within this share of the best are drawn by lot")
    rtp_decay: float = _weight(0.001, "rtp: how a decode worker's weight falls per KV token used")
    cache_threshold: float = _weight(0.3, "cache_aware: least share of a prompt that is a match", 1)
    balance_abs: float = _weight(64.0, "cache_aware: requests between most and fewest in balance")
    balance_rel: float = _weight(1.5, "cache_aware: most over fewest requests in balance")
    expected_tokens: int = _count(256, "output tokens expected of a request, max_tokens at most", 0)
    decode_prefill_tokens: int = _count(
        1024, "cost: prompt tokens that a decode worker may compute beside what it holds", 0
    )
    encode_ms_per_token: float = _weight(0.5, "of an encoder that has not measured itself")
    prefill_ms_per_token: float = _weight(0.2, "of a prefill worker that has not measured itself")
    decode_ms_per_step: float = _weight(20.0, "of a decode worker that has not measured itself")
    transfer_bytes_per_ms: float = option(
        1e6, "between workers that have not measured it", least=1e-3, most=1e15
    )
    settle: float = _weight(0.2, "until a placed request shows in its worker's reports", _LONGEST_S)
    request_ttl: float = _some(600.0, "until a placed request that nobody ended is given up")
    predict_ttl: float = _some(120.0, "how long a cache without events is thought to hold a block")
    predict_blocks: int = _count(65536, "blocks a cache without events is thought to hold", 0)
    max_index_entries: int = _count(64_000_000, "blocks and pictures indexed for one model", 0)
    max_instances: int = _count(10_000, "workers of all models")
    max_in_flight: int = _count(1_000_000, "placed requests of all models")
    max_queue: int = _count(
        1024, "requests that wait for a worker of a model to be less busy, 0: none waits", 0
    )
    max_queue_wait: float = _some(5.0, "foreseen wait there at which a request is refused at once")
    queue_timeout: float = _some(30.0, "longest wait there")
    busy_queue_ms: float = _weight(10_000.0, "a worker with so much before it is busy, 0: never")
    busy_requests: int = _count(
        0, "a worker with so many requests is busy; 0: one that decodes, at twice what it runs", 0
    )
    busy_kv_usage: float = _weight(
        0.95, "a decode worker with this share of blocks used is busy, 0: never", 1
    )
    breaker_failures: int = _count(5, "failures in a row that take a worker out, 0: never", 0)
    breaker_open: float = _weight(30.0, "for how long", _LONGEST_S)
    redis_url: str = option("", "of a Redis that several masters share; in memory if empty")
    redis_namespace: str = option("default", "masters of other fleets in the same Redis differ")
    orphan_ttl: float = _weight(
        300.0, "a worker whose own master is silent is kept for so long while it answers probes",
        _LONGEST_S,
    )  # fmt: skip
    admin_api_key: str = option("", "X-API-Key of /instances; closed if empty", env="ADMIN_API_KEY")
    probe_interval: float = _some(5.0, "between probes of workers that cannot register", 0.01)
    probe_timeout: float = _some(2.0, "of one probe")
    probe_failures: int = _count(3, "failed probes that take such a worker out")
    probe_forget: float = _some(900.0, "until such a worker is forgotten")
    max_body_bytes: int = _count(16 << 20, "largest request body")
    log_level: str = option(
        "info", "the least that is logged", choices=("debug", "info", "warning", "error")
    )
