"""How workers are chosen, and what is taken for granted of those that say little, as a master is
told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protocol.options import count, milliseconds, option, seconds


def weight(default: float, help: str, unit: str = "weight", most: float = 1e12, **rule: Any) -> Any:
    """0 or more."""
    return option(default, help, unit, minimum=0, maximum=most, **rule)


@dataclass(frozen=True)
class PolicyOptions:
    """A policy's own options name it first in their help."""

    policy: str = option(
        "cost",
        "How workers are chosen: cost, kv, rtp, cache_aware, smg, least_loaded, round_robin,"
        " random, the name of one that an installed package brings, or a class of your own as"
        " module:Class.",
        "policy",
        pattern=r"[\w-]+|[\w.]+:\w+",
        form="the name of a policy or module:Class",
        flags=("--router-mode",),
        section="Placement",
    )
    seed: int = option(
        0,
        "Seed of random choices. 0: a different one at each start.",
        "number",
        minimum=-(1 << 63),
        maximum=(1 << 63) - 1,
    )
    tie_ms: float = milliseconds(
        1.0, "cost: workers whose cost is this close to the lowest are drawn at random."
    )
    tie_ratio: float = weight(
        0.02, "cost: the same closeness as --tie-ms, as a share of the lowest cost.", "share"
    )
    work_weight: float = weight(
        0.5, "cost: weight of the computing that a request brings, as it delays later requests."
    )
    overlap_weight: float = weight(
        1.0,
        "kv: weight of prompt blocks that must be computed, beside blocks that decode.",
        flags=(
            "--router-kv-overlap-score-weight",
            "--kv-overlap-score-weight",
            "--router-prefill-load-scale",
        ),
    )
    overlap_credit: float = weight(
        1.0,
        "kv: blocks taken off a worker's cost for each block that it has cached; above 1 favours"
        " caches.",
        "blocks",
        flags=("--router-kv-overlap-score-credit",),
    )
    temperature: float = weight(
        0.0,
        "kv: temperature of the softmax over costs, which are scaled to their range. 0: always the"
        " lowest cost.",
        "temperature",
        flags=("--router-temperature",),
    )
    kv_local_tokens: int = count(
        0,
        "kv: a decode worker that lacks fewer tokens of a prompt computes them itself. 0: never.",
        "tokens",
        minimum=0,
    )
    kv_local_ratio: float = weight(
        0.7,
        "kv: the same bound as --kv-local-tokens, as a share of the prompt. Both bounds must hold;"
        " no effect while --kv-local-tokens is 0.",
        "share",
        1,
    )
    kv_encoders: str = option(
        "turns",
        "kv: which encoder gets a picture: turns (the next one), cached (the one with the fewest"
        " requests of those that hold it, or else of all).",
        choices=("turns", "cached"),
    )
    # These three are RTP-LLM's own numbers.
    rtp_hit_weight: float = weight(
        0.3, "rtp: cost of a cached token as a share of a computed one.", "share"
    )
    rtp_slack: float = weight(
        0.1,
        "rtp: workers whose cost exceeds the lowest by this share are drawn at random.",
        "share",
    )
    rtp_decay: float = weight(
        0.001, "rtp: how fast a decode worker's weight falls with each KV token in use.", "rate"
    )
    # These three are the numbers of SGLang's gateways.
    cache_threshold: float = weight(
        0.3, "cache_aware: share of a prompt that must be cached to count as a match.", "share", 1
    )
    balance_abs: float = weight(
        64.0,
        "cache_aware: difference between the busiest and the idlest worker up to which load is"
        " balanced. smg: the same between the best match and the mean.",
        "requests",
    )
    balance_rel: float = weight(
        1.5,
        "cache_aware: ratio of the busiest to the idlest worker up to which load is balanced. smg:"
        " the same of the best match to the mean.",
        "ratio",
    )


@dataclass(frozen=True)
class TrackingOptions:
    """What placement may do, and what is counted of workers' caches and load: switches that
    Dynamo's router has too."""

    enforce_disagg: bool = option(
        False,
        "Place every request on a prefill and a decode worker. While one is missing, answer 503"
        " (disagg_unavailable) instead of letting one worker do both. A proxy that no master"
        " answers places without this rule.",
        section="Placement",
    )
    follow_events: bool = option(
        True,
        "Follow the cache events of workers. Off: assume that a cache keeps what was placed there,"
        " for --predict-ttl.",
        section="Tracking",
        flags=("--router-kv-events", "--kv-events"),
    )
    predict_prune_ratio: float = option(
        1.0,
        "Share of --predict-blocks that is still assumed to be kept after a cache without events"
        " has become full.",
        "share",
        above=0,
        maximum=1,
        flags=("--router-prune-target-ratio",),
    )
    track_output_blocks: bool = option(
        True,
        "Count the KV blocks of a request's expected output as used from its placement on. Off:"
        " count those of its prompt.",
        flags=("--router-track-output-blocks",),
    )
    assume_kv_reuse: bool = option(
        True,
        "Count only those KV blocks of a prompt as used that its worker does not hold. Off: count"
        " all of them.",
        flags=("--router-assume-kv-reuse",),
    )


@dataclass(frozen=True)
class ElasticOptions:
    """Which role workers serve that may have several."""

    elastic: bool = option(
        True,
        "Move workers of the role any between encode, prefill and decode by their load. Off: they"
        " move by POST /instances/role alone.",
        section="Workers of the role any",
    )
    elastic_window: float = seconds(10.0, "Time over which --elastic takes the mean of the load.")
    elastic_dwell: float = seconds(
        30.0, "How long a worker serves a role at the least before --elastic moves it.", minimum=0
    )
    elastic_gap: float = seconds(
        5.0,
        "Time between two moves of one model's workers, unless a role that is needed has none.",
        minimum=0,
    )
    elastic_margin: float = option(
        0.2,
        "By which share the role that gives a worker must stay less loaded than the one that takes"
        " it was. The larger it is, the fewer workers move.",
        "share",
        minimum=0,
        below=1,
    )


@dataclass(frozen=True)
class EstimateOptions:
    """What stands in for figures that a worker has not measured or does not tell."""

    expected_tokens: int = count(
        256,
        "Output tokens expected of a request that may make more.",
        "tokens",
        minimum=0,
        section="Estimates",
    )
    decode_prefill_tokens: int = count(
        1024,
        "cost: prompt tokens beyond its cached ones that a decode worker may compute itself.",
        "tokens",
        minimum=0,
    )
    encode_ms_per_token: float = milliseconds(
        0.5, "Time per token of encode workers while none has measured itself."
    )
    prefill_ms_per_token: float = milliseconds(
        0.2, "Time per token of prefill workers while none has measured itself."
    )
    decode_ms_per_step: float = milliseconds(
        20.0, "Time per step of a decode worker that has not measured itself."
    )
    transfer_bytes_per_ms: float = option(
        1e6,
        "Transfer rate between workers that have not measured it.",
        "bytes/ms",
        minimum=1e-3,
        maximum=1e15,
    )
    settle: float = seconds(
        0.2,
        "Time after which a placed request is expected in its worker's own load report.",
        minimum=0,
    )
    request_ttl: float = seconds(
        600.0,
        "Time after which the master forgets a placed request whose end no proxy has reported.",
    )
    # What Dynamo's router takes without KV events.
    predict_ttl: float = seconds(
        120.0,
        "How long a cache that publishes no events is assumed to keep a block.",
        flags=("--router-ttl-secs", "--router-ttl"),
    )
    predict_blocks: int = count(
        65536, "Blocks that a cache without events is assumed to keep.", "blocks", minimum=0
    )
