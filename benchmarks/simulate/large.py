"""`python -m benchmarks.simulate.large`: placement policies on a fleet of 1,250 workers.

    python -m benchmarks.simulate.large [--quick] [--json FILE] [--workers 1250] [--load 0.8]

A simulation: the real master, the real engine's scheduling core, virtual time. A tenth-sized fleet
is searched first for the load that it sustains with least_loaded; the large one has the same
proportions and gets that load times its size times `--load`. Every policy has its defaults. One
core, minutes for each policy. Exit status 0 if everything that must hold does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.common.rows import Row, arguments, at_least, finish
from benchmarks.simulate.bench import Bench, best_of
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import OURS, PEERS, Contender
from benchmarks.simulate.hardware import PROFILES
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import RATE_ERROR, Profile
from benchmarks.simulate.records import Shape
from benchmarks.simulate.traces import TRACES

_SMALL = 10  # workers of the fleet that is searched
_SEED = 11


@dataclass(frozen=True)
class FleetRun:
    """A policy's run. `cpu_s`: processor seconds, of workers and master together."""

    contender: Contender
    outcome: Outcome
    cpu_s: float


def study(
    trace: str, profile: Profile, workers: int, load: float, policies: Sequence[str]
) -> list[FleetRun]:
    """Ours, told of objectives and not, and the peers among `policies`."""
    small = Bench(case(trace, profile, _SMALL), profile)
    fleets = [Contender("least_loaded", shape) for shape in small.case.shapes]
    best, sustained = best_of(small, fleets, _SEED, small.case.pace)
    shape, times = scaled(best.shape, workers), workers / _SMALL
    pace = load * sustained * times
    print(f"{trace}: {shape} at {pace:.1f} requests/s", file=sys.stderr, flush=True)
    large = Bench(case(trace, profile, _SMALL), profile)
    contenders = [Contender(policy, shape) for policy in policies]
    contenders.append(Contender(OURS, shape, kind="told", tells=True))
    lines = []
    for contender in contenders:
        begun = time.process_time()
        outcome = large.run(contender, _SEED, pace, whole=True)
        lines.append(FleetRun(contender, outcome, time.process_time() - begun))
        print(f"{contender.name}: {outcome.attained:.1%}", file=sys.stderr, flush=True)
    return lines


def scaled(shape: Shape, workers: int) -> Shape:
    """A fleet of so many workers in about the proportions of another."""
    times = workers / shape.total
    encode, prefill = round(shape.encode * times), max(1, round(shape.prefill * times))
    return Shape(encode, prefill, workers - encode - prefill)


def table(lines: Sequence[FleetRun]) -> str:
    """Markdown."""
    text = [
        "| policy | within both objectives | TTFT p50 / p99, ms | TPOT p50 / p99, ms | KV hits "
        "| refused | lifetimes | processor s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {line.contender.name} | {out.attained:.1%} | {out.ttft_p50:.0f} / {out.ttft_p99:.0f} "
        f"| {out.tpot_p50:.1f} / {out.tpot_p99:.1f} | {out.kv_hits:.0%} | {out.refused:.1%} "
        f"| {out.lifetimes:.1f} | {line.cpu_s:.0f} |"
        for line in lines
        for out in (line.outcome,)
    ]
    return "\n".join(text)


def rows(trace: str, lines: Sequence[FleetRun]) -> list[Row]:
    """Ours beside the peer that is best in that figure."""
    ours = [line.outcome for line in lines if line.contender.policy == OURS]
    peers = [line.outcome for line in lines if line.contender.policy != OURS]
    share, peer_share = (max(one.attained for one in some) for some in (ours, peers))
    untold, told = ours[0], ours[-1]
    peer_ttft = min(one.ttft_p99 for one in peers)
    return [
        at_least(f"{trace}: share within both objectives", share, peer_share, 1.0),
        # A time: the peer's by ours.
        Row(f"{trace}: TTFT p99, ms, not told", untold.ttft_p99, peer_ttft),
        Row(f"{trace}: TTFT p99, ms, told", told.ttft_p99, peer_ttft),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("simulate.large", __doc__)
    parser.add_argument("--trace", default="multi_turn", choices=tuple(TRACES))
    parser.add_argument("--workers", type=int, default=1250, help="workers of the fleet (1250)")
    parser.add_argument("--load", type=float, default=0.8, help="share of what it sustains (0.8)")
    parser.add_argument("--policies", default="cost,least_loaded,kv,cache_aware,smg,rtp")
    parser.add_argument("--profile", default="calibrated", choices=tuple(PROFILES))
    args = parser.parse_args(argv)
    policies = args.policies.split(",")
    if unknown := set(policies) - {OURS, *PEERS}:
        parser.error(f"--policies: no such policy: {', '.join(sorted(unknown))}")
    if policies[0] != OURS or len(policies) < 2:
        parser.error("--policies: cost first, then one or more others")
    if args.quick:
        args.workers, policies = 40, policies[:2]
    profile = replace(PROFILES[args.profile](), rate_error=RATE_ERROR)
    lines = study(args.trace, profile, args.workers, args.load, policies)
    print(table(lines))
    return finish(rows(args.trace, lines), args.json)


if __name__ == "__main__":
    sys.exit(main())
