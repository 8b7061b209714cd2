"""What the master is told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.settings import option


@dataclass(frozen=True)
class MasterConfig:
    """Resolved once at start. Times are seconds unless the name says ms; 0 switches a limit off."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(7000, "port to listen on, 0 for any free one", env="MASTER_PORT")
    lease: float = option(10.0, "a worker not heard of for so long is forgotten")
    policy: str = option(
        "cost",
        "cost, kv, rtp, cache_aware, least_loaded, round_robin, random, or your own module:Class",
    )
    seed: int = option(0, "of random choices, 0 for a different one each time")
    tie_ms: float = option(1.0, "cost: workers within so much of the best are drawn by lot")
    tie_ratio: float = option(0.02, "cost: as tie_ms, as a share of the best")
    work_weight: float = option(0.5, "cost: what computing costs those who come after, per ms")
    overlap_weight: float = option(1.0, "kv: weight of missing blocks (Dynamo)")
    temperature: float = option(0.0, "kv: of the softmax over costs, 0 for the least (Dynamo)")
    rtp_hit_weight: float = option(0.3, "rtp: cost of a cached token, as a share of a missing one")
    rtp_slack: float = option(0.1, "rtp: workers within this share of the best are drawn by lot")
    rtp_decay: float = option(0.001, "rtp: how a decode worker's weight falls per token of KV used")
    cache_threshold: float = option(0.3, "cache_aware: least share of a prompt that is a match")
    balance_abs: float = option(64.0, "cache_aware: requests between most and fewest in balance")
    balance_rel: float = option(1.5, "cache_aware: most over fewest requests in balance")
    expected_tokens: int = option(256, "output tokens expected of a request, max_tokens at most")
    encode_ms_per_token: float = option(0.5, "of an encoder that has not measured itself")
    prefill_ms_per_token: float = option(0.2, "of a prefill worker that has not measured itself")
    decode_ms_per_step: float = option(20.0, "of a decode worker that has not measured itself")
    transfer_bytes_per_ms: float = option(1e6, "between workers that have not measured it")
    settle: float = option(0.2, "until a placed request shows in its worker's reports")
    request_ttl: float = option(600.0, "until a placed request that nobody ended is given up")
    predict_ttl: float = option(120.0, "how long a cache without events is thought to hold a block")
    predict_blocks: int = option(65536, "blocks a cache without events is thought to hold")
    max_index_entries: int = option(64_000_000, "blocks and pictures indexed for one model")
    max_instances: int = option(10_000, "workers of all models")
    max_in_flight: int = option(1_000_000, "placed requests of all models")
    max_queue: int = option(1024, "requests that wait for a worker of a model to be less busy")
    queue_timeout: float = option(30.0, "longest wait there")
    busy_queue_ms: float = option(10_000.0, "a worker with so much before it is busy")
    busy_requests: int = option(0, "a worker with so many requests is busy")
    busy_kv_usage: float = option(0.95, "a decode worker with this share of blocks used is busy")
    breaker_failures: int = option(5, "failures in a row that take a worker out")
    breaker_open: float = option(30.0, "for how long")
    redis_url: str = option("", "of a Redis that several masters share; in memory if empty")
    redis_namespace: str = option("default", "masters of other fleets in the same Redis differ")
    orphan_ttl: float = option(
        300.0, "a worker whose own master is silent is kept for so long while it answers probes"
    )
    admin_api_key: str = option("", "X-API-Key of /instances; closed if empty", env="ADMIN_API_KEY")
    probe_interval: float = option(5.0, "between probes of workers that cannot register")
    probe_timeout: float = option(2.0, "of one probe")
    probe_failures: int = option(3, "failed probes that take such a worker out")
    probe_forget: float = option(900.0, "until such a worker is forgotten")
    max_body_bytes: int = option(16 << 20, "largest request body")
    log_level: str = option("info", "debug, info, warning or error")
