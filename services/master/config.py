"""What the master is told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.flag_lists import check_networks
from protocol.fleet_key import FleetOptions
from protocol.options import (
    count,
    drain_delay_option,
    log_format_option,
    log_level_option,
    milliseconds,
    option,
    port_option,
    seconds,
    shutdown_timeout_option,
    size,
)
from protocol.server_options import TlsOptions, TraceOptions
from services.master.policy_options import (
    ElasticOptions,
    EstimateOptions,
    PolicyOptions,
    TrackingOptions,
    weight,
)


@dataclass(frozen=True)
class MasterConfig(
    EstimateOptions,
    PolicyOptions,
    TrackingOptions,
    ElasticOptions,
    FleetOptions,
    TlsOptions,
    TraceOptions,
):
    """Resolved once at start."""

    host: str = option(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 or :: for all of this machine.",
        "address",
        section="Server",
    )
    port: int = port_option(7000, "TCP port to listen on. 0: any free port.", env="MASTER_PORT")
    lease: float = seconds(
        10.0,
        "Silence after which a registered worker is removed from the fleet.",
        minimum=0.1,
        section="Fleet",
    )
    max_index_entries: int = count(
        64_000_000,
        "Entries in each index of one model: blocks in KV caches, in host memory and on disk,"
        " pictures.",
        "entries",
        minimum=0,
        section="Limits",
    )
    max_instances: int = count(
        10_000, "Workers of all models; further ones are refused.", "workers"
    )
    max_in_flight: int = count(
        1_000_000, "Placed requests of all models; further ones are answered with 503.", "requests"
    )
    max_queue: int = count(
        1024,
        "Requests of one model that may wait for a worker; further ones are answered with 503. 0:"
        " none waits.",
        "requests",
        minimum=0,
        section="Queue and objectives",
    )
    max_queue_wait: float = seconds(
        30.0, "Predicted wait in the master's queue beyond which a request is answered with 503."
    )
    queue_timeout: float = seconds(
        60.0, "How long a request may wait in the master's queue before it is answered with 503."
    )
    tenant_share: float = option(
        1.0,
        "Share of what all workers run at once that one tenant, an API key at the proxy, may have"
        " while another asks too. 1: all of it.",
        "share",
        above=0,
        maximum=1,
    )
    ttft_slo: float = seconds(
        0.0,
        "Time to the first token that a request has to meet unless it states another. A request "
        "that another worker has failed is not refused for it. 0: none.",
        minimum=0,
    )
    tpot_slo: float = seconds(
        0.0,
        "Time per output token that a request has to meet unless it states another. 0: none.",
        minimum=0,
    )
    queue_policy: str = option(
        "refuse",
        "What becomes of a request that cannot meet --ttft-slo: refuse (503 with Retry-After at"
        " once), last (served behind all requests that can).",
        choices=("refuse", "last"),
    )
    refuse_first: str = option(
        "late",
        "Which requests are refused first while not all can keep their objectives: late (those that"
        " cannot), largest (before these, those that take most of the workers' time: more requests"
        " are served, large ones only once there is time for them). largest needs --queue-policy"
        " refuse.",
        choices=("late", "largest"),
    )
    busy_queue_ms: float = milliseconds(
        10_000.0,
        "Queued work with which a worker gets no further requests. 0: no such limit.",
        section="Busy and failing workers",
    )
    busy_requests: int = count(
        0,
        "Requests with which a worker gets no further ones. 0: twice the batch of a decode worker,"
        " no limit for others.",
        "requests",
        minimum=0,
    )
    busy_kv_usage: float = weight(
        0.95,
        "Share of KV blocks in use with which a decode worker gets no further requests. 0: no such"
        " limit.",
        "share",
        1,
        flags=("--active-decode-blocks-threshold", "--busy-threshold"),
    )
    breaker_failures: int = count(
        5,
        "Failures in a row after which a worker gets no requests for a while. 0: it always gets"
        " some.",
        "failures",
        minimum=0,
    )
    breaker_open: float = seconds(
        30.0, "How long a worker gets no requests after --breaker-failures.", minimum=0
    )
    wanted_utilisation: float = option(
        0.7,
        "Share that workers should use of their time, of what full batches do, of their KV blocks"
        " and of the time per token that requests allow;"
        " wanted_workers asks for as many as that needs.",
        "share",
        above=0,
        maximum=1,
        section="Autoscaling",
    )
    wanted_hold: float = seconds(
        300.0,
        "How long fewer workers must be enough before wanted_workers asks for fewer.",
        minimum=0,
    )
    redis_url: str = option(
        "",
        "URL of the Redis through which masters share a fleet. Empty: one master alone.",
        "URL",
        section="Several masters",
    )
    redis_namespace: str = option(
        "default",
        "Name of the fleet in Redis: letters, digits, '.', '_' and '-', at most 64.",
        "name",
        pattern=r"[A-Za-z0-9._-]{1,64}",
        form="a name of at most 64 letters, digits, '.', '_' and '-'",
    )
    replica_sync: bool = option(
        True,
        "Tell the other masters of each placement, so that they count its load at once. Off: they"
        " learn of it by the worker's next load report.",
        flags=("--router-replica-sync",),
    )
    orphan_ttl: float = seconds(
        300.0,
        "How long a worker whose own master is silent stays in the fleet while it answers probes.",
        minimum=0,
    )
    # Header and variable are those of vLLM's example proxy, whose contract /instances is.
    admin_api_key: str = option(
        "",
        "Key that X-API-Key must bring to /instances, /instances/role and /set_log_level. Empty:"
        " these routes are closed.",
        "key",
        env="ADMIN_API_KEY",
        secret=True,
        section="Access",
    )
    allowed_worker_networks: str = option(
        "",
        "Comma-separated networks (CIDR) that all addresses which workers register must be in; any:"
        " all. Empty: all with --fleet-key, without it loopback and private ones and --host.",
        "networks",
        check=check_networks,
    )
    protect_metrics: bool = option(
        False,
        "Ask for the fleet key at /metrics too, and for what /health tells beyond its status.",
    )
    # These four are what vLLM's example proxy does: 5 s, 2 s, 3 failures, 900 s.
    probe_interval: float = seconds(
        5.0,
        "Time between two probes of a worker that cannot register.",
        minimum=0.01,
        section="Workers that cannot register",
    )
    probe_timeout: float = seconds(2.0, "How long one probe may take.")
    probe_failures: int = count(
        3, "Failed probes in a row after which such a worker gets no requests.", "probes"
    )
    probe_forget: float = seconds(
        900.0, "Silence after which a worker that cannot register is removed from the fleet."
    )
    max_body_bytes: int = size(16 << 20, "Largest body of a request.", section="Server")
    drain_delay: float = drain_delay_option()
    shutdown_timeout: float = shutdown_timeout_option()
    log_level: str = log_level_option()
    log_format: str = log_format_option()
