"""Who is compared: our policy as it comes, peers' as published and over small grids."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from services.master.config import MasterConfig

OURS = "cost"
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_APART: Mapping[str, Any] = MappingProxyType({"decode_prefill_tokens": 0})


@dataclass(frozen=True)
class Contender:
    """A policy with the options it runs with, on split number `split` of a case's fleets."""

    policy: str
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    tuned: bool = False
    split: int = 0

    @property
    def name(self) -> str:
        if self.options is _APART:
            return f"{self.policy}, always apart"
        return f"{self.policy} (tuned)" if self.tuned else self.policy

    def config(self, seed: int) -> MasterConfig:
        fixed = DESIGN.get(self.policy, _NOTHING)
        return MasterConfig(policy=self.policy, seed=seed + 1, **{**fixed, **self.options})

    def chosen(self) -> str:
        return ", ".join(f"{name}={value:g}" for name, value in self.options.items())


# RTP-LLM reserves the prompt and up to 1000 output tokens in a decode worker.
DESIGN: Mapping[str, Mapping[str, Any]] = MappingProxyType({"rtp": {"expected_tokens": 1000}})

# The published defaults are kv 1.0 and 0.0, rtp 0.3, 0.1 and 0.001, cache_aware 0.3, 64 and 1.5.
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType(
    {
        "kv": {"overlap_weight": (0.5, 2.0), "temperature": (0.0, 0.5)},
        "rtp": {"rtp_hit_weight": (0.05, 0.3), "rtp_slack": (0.0, 0.3)},
        "cache_aware": {"balance_abs": (8.0, 24.0), "cache_threshold": (0.1, 0.5)},
    }
)

PEERS = ("kv", "rtp", "cache_aware", "least_loaded", "round_robin", "random")


def apart(contender: Contender) -> Contender:
    """Ours, but every prompt is computed by a prefill worker, as with peers."""
    return replace(contender, options=_APART)


def grid(policy: str) -> list[Contender]:
    """Every combination, none for a policy without options."""
    options = GRIDS.get(policy, {})
    if not options:
        return []
    return [
        Contender(policy, dict(zip(options, values, strict=True)), tuned=True)
        for values in itertools.product(*options.values())
    ]
