"""Who is compared: each policy as it comes, and with options drawn at random for tuning."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from benchmarks.simulate.records import Shape
from services.master.config import MasterConfig

OURS = "cost"
PEERS = ("kv", "rtp", "cache_aware", "least_loaded", "round_robin", "random")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Contender:
    """A policy on a fleet, with the options it runs with; `kind` says where these come from.

    `tells`: the master knows each request's objectives, and refuses what cannot keep them.
    `elastic`: all workers are of the role any, and `shape` is how they begin.
    """

    policy: str  # name of the master's policy
    shape: Shape
    # the policy's options by name
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    kind: str = ""
    tells: bool = False
    elastic: bool = False

    @property
    def name(self) -> str:
        return f"{self.policy} ({self.kind})" if self.kind else self.policy

    def config(self, seed: int) -> MasterConfig:
        fixed = DESIGN.get(self.policy, _NOTHING)
        return MasterConfig(policy=self.policy, seed=seed + 1, **{**fixed, **self.options})

    def chosen(self) -> str:
        return ", ".join(f"{name}={_said(value)}" for name, value in self.options.items())


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


# Under overload large requests are refused first.
LARGEST: Mapping[str, Any] = MappingProxyType({"refuse_first": "largest"})
# Which requests a master that is told the objectives refuses first.
REFUSALS: Sequence[Mapping[str, Any]] = (_NOTHING, LARGEST)
# RTP-LLM reserves the prompt and up to 1000 output tokens in a decode worker.
DESIGN: Mapping[str, Mapping[str, Any]] = MappingProxyType({"rtp": {"expected_tokens": 1000}})


@dataclass(frozen=True)
class Range:
    """Values to draw from: evenly, or evenly by their logarithms; `off` is drawn that often."""

    low: float
    high: float
    log: bool = False
    off: float = 0.0
    whole: bool = False

    def draw(self, rng: random.Random) -> float:
        if rng.random() < self.off:
            return 0
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = rng.uniform(self.low, self.high)
        return round(value) if self.whole else value


# Queued work with which a worker gets no more, as by Dynamo's and vLLM's busy thresholds; a request
# that no worker takes waits at the router for a while, and is refused.
SHEDDING = Range(300.0, 10_000.0, log=True)

# Every option that moves a choice, in a range that holds the published default.
SPACES: Mapping[str, Mapping[str, Range]] = MappingProxyType(
    {
        "cost": {
            "work_weight": Range(0.1, 3.0, log=True),
            "decode_prefill_tokens": Range(128, 8192, log=True, off=0.1, whole=True),
            "tie_ratio": Range(0.0, 0.1),
        },
        "kv": {
            "busy_queue_ms": SHEDDING,
            "busy_kv_usage": Range(0.5, 1.0, off=0.5),  # Dynamo's threshold of decode blocks
            "overlap_credit": Range(0.25, 4.0, log=True),
            "temperature": Range(0.02, 1.0, log=True, off=0.5),
            "kv_local_tokens": Range(128, 8192, log=True, off=0.2, whole=True),
            "kv_local_ratio": Range(0.1, 1.0),
        },
        "rtp": {
            "busy_queue_ms": SHEDDING,
            "rtp_hit_weight": Range(0.01, 1.0, log=True),
            "rtp_slack": Range(0.0, 0.5),
            "rtp_decay": Range(1e-5, 1e-2, log=True),
        },
        "cache_aware": {
            "busy_queue_ms": SHEDDING,
            "balance_abs": Range(1.0, 128.0, log=True),
            "balance_rel": Range(1.0, 4.0),
            "cache_threshold": Range(0.05, 0.9),
        },
    }
)


def trials(
    policy: str, shapes: Sequence[Shape], count: int, seed: int, *, tells: bool
) -> list[Contender]:
    """`count` draws of options and fleet; of a policy without options every fleet once."""
    space = SPACES.get(policy)
    if space is None:
        return [Contender(policy, shape, tells=tells) for shape in shapes]
    rng = random.Random(seed)
    kind = "told, tuned" if tells else "tuned"
    found = []
    for _ in range(count):
        shape = rng.choice(shapes)
        options: dict[str, Any] = {name: values.draw(rng) for name, values in space.items()}
        if tells:
            options |= rng.choice(REFUSALS)
        found.append(Contender(policy, shape, options, kind, tells))
    return found


def published(policy: str, shapes: Sequence[Shape]) -> list[list[Contender]]:
    """At the defaults, on every fleet; each list has one kind. Ours with and without a master that
    is told the objectives, and with workers of the role any that begin as that fleet; Dynamo's
    router with and without its conditional disaggregation."""
    found = [[Contender(policy, shape) for shape in shapes]]
    if policy == OURS:
        found.append([Contender(policy, s, _NOTHING, "any", elastic=True) for s in shapes])
        found.append([Contender(policy, s, kind="told", tells=True) for s in shapes])
        found.append([Contender(policy, s, LARGEST, "told, largest", True) for s in shapes])
        found.append([Contender(policy, s, LARGEST, "told, largest, any", True, True)
                      for s in shapes])  # fmt: skip
    if policy == "kv":
        options = {"kv_local_tokens": 2048}
        found.append([Contender(policy, s, options, "conditional") for s in shapes])
    return found
