"""`python -m benchmarks.simulate.elastic`: workers of the role any beside the best fixed split.

    python -m benchmarks.simulate.elastic [--quick] [--json FILE] [--out docs/benchmarks]

A simulation: the real master, the real engine's scheduling core, virtual time. In the course of a
day requests turn from text with long answers to pictures with short ones and back. One core. Exit
status 0 if everything that must hold does.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.rows import Row, arguments, at_least, finish, markdown
from benchmarks.simulate.arrivals import Replay
from benchmarks.simulate.cases import requests
from benchmarks.simulate.metrics import Outcome, outcome
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.prompts import Prompt, Session
from benchmarks.simulate.records import Objectives, Shape, Span
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.traces import lengths, poisson
from services.master.config import MasterConfig

_CONTENT = 1 << 62
_SIZES = (256, 400, 576, 784)  # of pictures, in tokens
_LEAST = 0.05  # share of the requests that are of the rarer kind at the extremes of a day
_WARM_S = 20.0
_SAMPLE = 400
# Of eight workers, the splits that a quick run compares with: those that a day asks for.
_LIKELY = tuple(Shape(e, p, 8 - e - p) for e in (1, 2, 3) for p in (1, 2))


def day(block_size: int, seed: int, length: float) -> Iterator[Session]:
    """One request a second. At the start and the end of a day, `length` s, 5 % of the requests have
    pictures (1 to 3, none seen before; answers of some 60 tokens), in its middle 95 %; the others
    are text with answers of some 400 tokens."""
    rng = random.Random(seed)
    for number, time in enumerate(poisson(rng)):
        prompt = Prompt(block_size)
        share = 0.5 - (0.5 - _LEAST) * math.cos(2 * math.pi * time / length)
        pictures = rng.random() < share
        for _ in range(rng.randint(1, 3) if pictures else 0):
            prompt.add_picture(rng.randrange(_CONTENT), rng.choice(_SIZES))
        prompt.add(rng.randrange(_CONTENT), lengths(rng, 60 if pictures else 600, 0.7, 8, 3000))
        output = lengths(rng, 60, 0.7, 8, 300) if pictures else lengths(rng, 400, 0.5, 16, 1200)
        yield Session(time, (prompt.request(f"r{number}", rng.randrange(_CONTENT), output),))


@dataclass(frozen=True)
class Plan:
    """How one comparison runs: fleets of `workers`, at `pace` requests/s for a day of `length`
    virtual seconds that `seed` makes."""

    profile: Profile
    workers: int
    pace: float
    length: float
    seed: int

    def aims(self) -> Objectives:
        """Those of the study: five times an idle fleet's."""
        return Objectives.relative(self.profile, requests(self.sessions(), _SAMPLE))

    def sessions(self) -> Replay:
        return Replay(day(self.profile.block_size, self.seed, self.length * self.pace))


@dataclass(frozen=True)
class ElasticResult:
    """One fleet's day. `moves`: of workers between roles; `ended`: how the fleet was at its end."""

    name: str
    shape: Shape
    outcome: Outcome
    moves: int = 0
    ended: str = ""


def shapes(workers: int) -> list[Shape]:
    """All splits with a worker for each stage."""
    return [
        Shape(encode, prefill, workers - encode - prefill)
        for encode in range(1, workers - 1)
        for prefill in range(1, workers - encode)
    ]


def run(plan: Plan, name: str, shape: Shape, *, elastic: bool, moves: bool) -> ElasticResult:
    """A day on one fleet; `elastic`: of the role any, which change roles if `moves`."""
    config = MasterConfig(seed=plan.seed + 1, elastic=moves)
    simulation = Simulation(plan.profile, shape, config, plan.aims(), plan.seed, elastic=elastic)
    span = Span(_WARM_S, plan.length, 0.0, plan.length)
    found = outcome(simulation, simulation.run(plan.sessions(), plan.pace, span))
    roles = [worker.role for worker in simulation.workers]
    ended = Shape(*(roles.count(role) for role in ("encode", "prefill", "decode")))
    moved = simulation.service.master.registry.roles.moved
    return ElasticResult(name, shape, found, sum(moved.values()), str(ended))


def study(plan: Plan, splits: Sequence[Shape]) -> list[ElasticResult]:
    """Workers that move, the same workers kept in the best split's roles, the best fixed split and
    the worst one."""
    fixed = [run(plan, "fixed split", shape, elastic=False, moves=False) for shape in splits]
    best = max(fixed, key=lambda one: one.outcome.attained)
    kept = run(plan, "any, kept in the best split's roles", best.shape, elastic=True, moves=False)
    start = Shape(1, 1, plan.workers - 2)
    moving = run(plan, "any, moved by the master", start, elastic=True, moves=True)
    worst = min(fixed, key=lambda one: one.outcome.attained)
    named = (moving, kept, replace(best, name="best fixed split"))
    return [*named, replace(worst, name="worst fixed split")]


def table(plan: Plan, results: Sequence[ElasticResult]) -> str:
    """Markdown."""
    lines = [
        f"{plan.workers} workers, {plan.pace:g} requests/s, a day of {plan.length:g} virtual"
        f" seconds, seed {plan.seed}. Objectives: five times what a request takes on an idle"
        " fleet.\n",
        "| fleet | at the start | in both objectives | goodput, requests/s | TTFT p50 / p99, ms"
        " | TPOT p50 / p99, ms | moves |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in results:
        out = one.outcome
        lines.append(
            f"| {one.name} | {one.shape} | {out.attained:.1%} | {out.goodput:.2f}"
            f" | {out.ttft_p50:.0f} / {out.ttft_p99:.0f} | {out.tpot_p50:.1f} / {out.tpot_p99:.1f}"
            f" | {one.moves} |"
        )
    return "\n".join(lines)


def rows(results: Sequence[ElasticResult]) -> list[Row]:
    """What must hold: workers that move are at least as good as any split that does not."""
    moving, kept, best, _ = (one.outcome.goodput for one in results)
    return [
        at_least("goodput: any, moved / best fixed split", moving, best, 1.0),
        at_least("goodput: any, moved / any, kept", moving, kept, 1.0),
        Row("moves in the day", float(results[0].moves)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("simulate.elastic", __doc__)
    parser.add_argument("--out", type=Path, help="folder for the table, elastic.md")
    parser.add_argument("--workers", type=int, default=8, help="workers of each fleet (8)")
    parser.add_argument("--pace", type=float, default=5.0, help="requests/s (5)")
    parser.add_argument("--length", type=float, default=0.0, help="seconds of a day (1800)")
    parser.add_argument("--seed", type=int, default=11, help="seed of the day's arrivals (11)")
    args = parser.parse_args(argv)
    length = args.length or (600.0 if args.quick else 1800.0)
    plan = Plan(calibrated(), args.workers, args.pace, length, args.seed)
    splits = [one for one in shapes(args.workers) if not args.quick or one in _LIKELY]
    results = study(plan, splits)
    text = table(plan, results)
    print(text)
    if args.out:
        (args.out / "elastic.md").write_text(f"{text}\n\n{markdown(rows(results), '')}\n")
    return finish(rows(results), args.json)


if __name__ == "__main__":
    sys.exit(main())
