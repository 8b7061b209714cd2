"""Who is compared: each policy as it comes, and with options drawn at random for tuning."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from benchmarks.simulate.records import Shape
from services.master.config import MasterConfig

OURS = "cost"
PEERS = ("kv", "rtp", "smg", "cache_aware", "least_loaded", "round_robin", "random")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Contender:
    """A policy on a fleet, with the options it runs with; `kind` says where these come from.

    `tells`: the master knows each request's objectives, or with `only_ttft` that for the first
    token, and refuses what cannot keep them. `elastic`: all workers are of the role any, and
    `shape` is how they begin.
    """

    policy: str  # name of the master's policy
    shape: Shape
    # the policy's options by name
    options: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    kind: str = ""
    tells: bool = False
    elastic: bool = False
    only_ttft: bool = False

    @property
    def name(self) -> str:
        return f"{self.policy} ({self.kind})" if self.kind else self.policy

    @property
    def borrows(self) -> bool:
        """Whether it is a peer with refusals of ours, which it does not have."""
        return self.policy != OURS and self.tells and not self.only_ttft

    @property
    def group(self) -> tuple[str, bool, bool]:
        """Of each the one that did best in tuning is measured."""
        return self.policy, self.tells, self.elastic

    def config(self, seed: int) -> MasterConfig:
        fixed = DESIGN.get(self.policy, _NOTHING)
        return MasterConfig(policy=self.policy, seed=seed + 1, **{**fixed, **self.options})

    def of_role_any(self) -> Contender:
        """The same with workers of the role any, which begin in its fleet's roles."""
        return replace(self, kind=f"{self.kind}, any", elastic=True)

    def chosen(self) -> str:
        return ", ".join(f"{name}={_said(value)}" for name, value in self.options.items())


def _said(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


# Under overload large requests are refused first.
LARGEST: Mapping[str, Any] = MappingProxyType({"refuse_first": "largest"})
# Which requests a master that is told the objectives refuses first.
REFUSALS: Sequence[Mapping[str, Any]] = (_NOTHING, LARGEST)
# RTP-LLM reserves the prompt and up to 1000 output tokens in a decode worker, and has a decode
# worker's KV full at 90 %.
DESIGN: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"rtp": {"expected_tokens": 1000, "busy_kv_usage": 0.9}}
)

# Of Dynamo's router: decode workers compute short rests of a prompt; encoders are chosen by their
# caches.
CONDITIONAL: Mapping[str, Any] = MappingProxyType({"kv_local_tokens": 2048})
CACHED: Mapping[str, Any] = MappingProxyType({"kv_encoders": "cached"})


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


@dataclass(frozen=True)
class Word:
    """One value beside the default."""

    value: Any

    def draw(self, rng: random.Random) -> Any:
        return self.value


Values = Range | Word


def blind(max_running: int) -> dict[str, Values]:
    """What every policy may refuse by where no objectives are known, as Dynamo, RTP-LLM and
    SGLang's gateways do: work queued at a worker, requests there (a share of `max_running`), KV in
    use; at once, or after a wait at the master."""
    return {
        "busy_queue_ms": Range(300.0, 10_000.0, log=True),
        "busy_requests": Range(0.05 * max_running, max_running, log=True, whole=True),
        "busy_kv_usage": Range(0.05, 1.0),
        "max_queue": Word(0),
    }


# Options that move a choice, in a range that holds the published default.
SPACES: Mapping[str, Mapping[str, Values]] = MappingProxyType(
    {
        "cost": {
            "work_weight": Range(0.1, 3.0, log=True),
            "decode_prefill_tokens": Range(128, 8192, log=True, off=0.1, whole=True),
            "tie_ratio": Range(0.0, 0.1),
        },
        "kv": {
            "overlap_credit": Range(0.25, 4.0, log=True),
            "temperature": Range(0.02, 1.0, log=True),
            "kv_local_tokens": Range(128, 8192, log=True, whole=True),
            "kv_local_ratio": Range(0.1, 1.0),
            "kv_encoders": Word("cached"),
        },
        "rtp": {
            "rtp_hit_weight": Range(0.01, 1.0, log=True),
            "rtp_slack": Range(0.0, 0.5),
            "rtp_decay": Range(1e-5, 1e-2, log=True),
        },
        "smg": {"balance_abs": Range(1.0, 128.0, log=True), "balance_rel": Range(1.0, 4.0)},
        "cache_aware": {
            "balance_abs": Range(1.0, 128.0, log=True),
            "balance_rel": Range(1.0, 4.0),
            "cache_threshold": Range(0.05, 0.9),
        },
    }
)
_SHARE_DRAWN = 0.5  # the others stay as published


def trials(
    policy: str, shapes: Sequence[Shape], count: int, seed: int, *, tells: bool, max_running: int
) -> list[Contender]:
    """`count` draws of options and fleet. A master that is told objectives refuses by them, others
    by what `blind` has, of which all policies get the same draws."""
    objectives = tells and policy == OURS
    space, limits = SPACES.get(policy, {}), {} if objectives else blind(max_running)
    rng, common, found = random.Random(seed), random.Random(f"limits {seed}"), []
    for _ in range(count):
        options = {**_drawn(space, rng), **_drawn(limits, common)}
        one = Contender(policy, rng.choice(shapes), options, "tuned")
        if tells:
            more = rng.choice(REFUSALS) if objectives else _NOTHING
            one = replace(one, kind="told, tuned", tells=True, only_ttft=not objectives,
                          options={**one.options, **more})  # fmt: skip
        found.append(one)
    return found


def _drawn(space: Mapping[str, Values], rng: random.Random) -> dict[str, Any]:
    return {name: values.draw(rng) for name, values in space.items() if rng.random() < _SHARE_DRAWN}


def refusing(one: Contender, count: int, seed: int, max_running: int) -> list[Contender]:
    """The same with what `blind` has, as it is under overload; first as it is."""
    space, rng, found = blind(max_running), random.Random(seed), [one]
    kept = {name: value for name, value in one.options.items() if name not in space}
    kind = f"{one.kind}, refusing" if one.kind else "refusing"
    for _ in range(count):
        if drawn := _drawn(space, rng):
            found.append(replace(one, kind=kind, options={**kept, **drawn}))
    return found


def borrowing(policy: str, shapes: Sequence[Shape], count: int, seed: int) -> list[Contender]:
    """A peer before a master that is told the objectives and refuses by them, as ours does: as
    published in each kind, and `count` draws. What is left of ours' lead is its choice of workers.
    """
    rng, kinds = random.Random(seed), published(policy, shapes)
    found = [one for kind in kinds for one in kind if not one.tells]
    for _ in range(count):
        if drawn := _drawn(SPACES.get(policy, {}), rng):
            found.append(Contender(policy, rng.choice(shapes), drawn))
    return [
        replace(one, kind="with our refusals", tells=True, options={**one.options, **refusal})
        for one in found
        for refusal in REFUSALS
    ]


def published(policy: str, shapes: Sequence[Shape]) -> list[list[Contender]]:
    """At the defaults, on every fleet; each list has one kind. Ours with and without a master that
    is told the objectives, and with workers of the role any that begin as that fleet; Dynamo's
    router with and without its conditional disaggregation and its encoders' caches; RTP-LLM's with
    and without its filter by the time to the first token."""

    def kind(name: str, options: Mapping[str, Any] = _NOTHING, **more: bool) -> list[Contender]:
        return [Contender(policy, shape, options, name, **more) for shape in shapes]

    found = [kind("")]
    if policy == OURS:
        found += [
            kind("any", elastic=True),
            kind("told", tells=True),
            kind("told, largest", LARGEST, tells=True),
            kind("told, largest, any", LARGEST, tells=True, elastic=True),
        ]
    if policy == "kv":
        found.append(kind("conditional", CONDITIONAL))
        if any(shape.encode for shape in shapes):
            found.append(kind("cached", CACHED))
            found.append(kind("conditional, cached", {**CONDITIONAL, **CACHED}))
    if policy == "rtp":
        found.append(kind("told", tells=True, only_ttft=True))
    return found
