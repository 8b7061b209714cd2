"""A plan as text, as JSON and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.common.plotting import save
from benchmarks.plan.options import Options
from benchmarks.plan.search import ROLES, Trial
from benchmarks.simulate.records import Shape

# First port and share of a GPU's memory, as in deploy/compose.yaml, away from its own ports.
_COMPOSE = MappingProxyType(
    {
        "encode": (8100, "${MEMORY_E:-0.1}"),
        "prefill": (8200, "${MEMORY_P:-0.4}"),
        "decode": (8300, "${MEMORY_D:-0.7}"),
    }
)


@dataclass(frozen=True)
class Plan:
    """`best`: the cheapest fleet, at `cost`; `around`: those that differ by a worker; `curve`: it
    at other loads; `other`: the cheapest of the other kind, of fixed roles or of the role any, at
    `other_cost`; None if that has no cheaper one than the best."""

    best: Trial
    cost: float
    around: Sequence[Trial]
    curve: Sequence[Trial]
    other: Trial | None = None
    other_cost: float = 0.0


def text(options: Options, plan: Plan) -> str:
    """For people: the fleet, its neighbours, the curve, what to deploy."""
    best = plan.best
    run = best.runs[0]
    lines = [
        f"{best.name}: {best.shape.total} workers, cost {plan.cost:g}",
        f"  {best.attained:.1%} of {options.trace} at {options.rate:g} requests/s within TTFT "
        f"{options.ttft_s:g} s and TPOT {options.tpot_s:g} s; wanted {options.good:.0%}",
        f"  TTFT p50/p99 {run.ttft_p50:.0f}/{run.ttft_p99:.0f} ms, TPOT p50/p99 "
        f"{run.tpot_p50:.1f}/{run.tpot_p99:.1f} ms, busy {_busy(best)}",
        f"  workers as fast as {options.profile.name}; {_measured(options)}",
        f"  {_beside(plan)}",
        "",
        "fleets around it",
        *(f"  {t.name:12} {t.attained:6.1%}  busy {_busy(t)}" for t in plan.around),
        "",
        "this fleet at other loads",
        *(f"  {t.rate:9.4g} requests/s {t.attained:6.1%}" for t in plan.curve),
        "",
        *deployment(best),
    ]
    return "\n".join(lines)


def _beside(plan: Plan) -> str:
    """What the other kind of fleet would cost."""
    if plan.other is None:
        return "as many workers of the role any do not suffice"
    return f"instead {plan.other.name}: cost {plan.other_cost:g}, {plan.other.attained:.1%}"


def _busy(trial: Trial) -> str:
    shares = ((role, trial.busy(role)) for role in ROLES if getattr(trial.shape, role))
    return ", ".join(f"{role} {share:.0%}" for role, share in shares)


def _measured(options: Options) -> str:
    facts = options.profile.facts
    if not facts:
        return "reckoned from data sheets, not run on a GPU"
    return f"measured on {facts.get('hardware', 'an unnamed machine')}"


def deployment(trial: Trial) -> list[str]:
    """What starts such a fleet: on one machine, by the Helm chart's values, by compose. These two
    have no workers of the role any."""
    shape = trial.shape
    if trial.elastic:
        return ["one machine:", f"  triptych serve --num-any {shape.total}"]
    return [
        "one machine:",
        f"  triptych serve --num-e {shape.encode} --num-p {shape.prefill} --num-d {shape.decode}",
        "Helm values:",
        "  workers:",
        *(f"    {role}: {{ replicas: {getattr(shape, role)} }}" for role in ROLES),
        *_compose(shape),
    ]


def _compose(shape: Shape) -> list[str]:
    """Workers beyond the first of each role, as they extend those of deploy/compose.yaml."""
    extra = [
        line
        for role, (port, memory) in _COMPOSE.items()
        for number in range(1, getattr(shape, role))
        for line in _service(role, number, port + number, memory)
    ]
    head = "compose: COMPOSE_PROFILES=1e1p1d docker compose -f compose.yaml"
    if not extra:
        return [f"{head} up"]
    return [f"{head} -f plan.yaml up, with plan.yaml:", "  services:", *extra]


def _service(role: str, number: int, port: int, memory: str) -> list[str]:
    # An encoder's second service of compose.yaml has a profile of its own, so names begin anew.
    ready = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/ready')"
    command = f"[triptych, {role}, --port, '{port}', --gpu-memory-utilization, '{memory}']"
    return [
        f"    {role}-plan-{number}:",
        f"      extends: {{ file: compose.yaml, service: {role}-0 }}",
        f"      command: {command}",
        f'      healthcheck: {{ test: [CMD, python, -c, "{ready}"] }}',
    ]


def as_json(options: Options, plan: Plan) -> str:
    """For programs: the same with every run's figures."""
    asked = {
        "trace": options.trace, "rate": options.rate, "ttft_s": options.ttft_s,
        "tpot_s": options.tpot_s, "share": options.good, "model": options.profile.name,
    }  # fmt: skip
    other = plan.other
    said = {
        "asked": asked, "cost": plan.cost, "fleet": _fields(plan.best),
        "around": [_fields(t) for t in plan.around], "curve": [_fields(t) for t in plan.curve],
        "other": _fields(other) | {"cost": plan.other_cost} if other is not None else None,
    }  # fmt: skip
    return json.dumps(_plain(said), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON has no infinity: the time of what was never answered is null."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fields(trial: Trial) -> dict[str, Any]:
    runs = [asdict(run) for run in trial.runs]
    shape = asdict(trial.shape) | {"any_role": trial.elastic}
    return shape | {"rate": trial.rate, "attained": trial.attained, "runs": runs}


def plot(options: Options, plan: Plan, path: Path) -> None:
    """Share of requests within the objectives against the offered load."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    offered = [float(np.mean([run.offered for run in t.runs])) for t in plan.curve]
    axis.plot(offered, [t.attained for t in plan.curve], marker="o", label=plan.best.name)
    axis.axhline(options.good, color="black", linewidth=0.6)
    axis.axvline(options.rate, color="black", linewidth=0.6, linestyle=":")
    axis.set_xlabel("offered, requests/s")
    axis.set_ylabel("within both objectives")
    axis.set_ylim(0.0, 1.02)
    axis.legend()
    save(figure, path)
