"""`python -m benchmarks.simulate.stale`: what policies lose when the master's view lags behind.

    python -m benchmarks.simulate.stale [--quick] [--json FILE] [--traces multi_turn,pictures]

A simulation: the real master, the real engine's scheduling core, virtual time. Workers report their
load less often, and the changes of their caches arrive later. Every policy has its defaults, and
the fleet that suits it best where nothing lags. One core. Exit status 0 if everything that must
hold does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.common.rows import Row, arguments, at_least, finish
from benchmarks.simulate.bench import Bench, best_of
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import OURS, Contender
from benchmarks.simulate.hardware import PROFILES
from benchmarks.simulate.profile import RATE_ERROR, Profile
from benchmarks.simulate.traces import TRACES

LAGS = ((0.2, 0.005), (1.0, 0.005), (5.0, 0.005), (1.0, 1.0), (1.0, 5.0), (5.0, 5.0))
"""Seconds between a worker's reports, and from a change in a cache to the master."""
_PEERS = ("least_loaded", "kv", "cache_aware", "smg", "rtp")
_TUNING, _SEEDS = 1, range(11, 21)


@dataclass(frozen=True)
class LaggedLoads:
    """A policy on its fleet: sustained goodput in requests/s, by lag."""

    contender: Contender
    goodput: tuple[float, ...]


def study(trace: str, profile: Profile, workers: int, seeds: Sequence[int]) -> list[LaggedLoads]:
    """Ours, told of objectives and not, and the peers."""
    entries = [partial(Contender, OURS, kind="told", tells=True)]
    entries += [partial(Contender, name) for name in (OURS, *_PEERS)]
    lines = []
    for entry in entries:
        fresh = Bench(case(trace, profile, workers), profile)
        fleets = [entry(shape=shape) for shape in fresh.case.shapes]
        best, start = best_of(fresh, fleets, _TUNING, fresh.case.pace)
        found = []
        for heartbeat_s, event_s in LAGS:
            lagging = replace(profile, heartbeat_s=heartbeat_s, event_s=event_s)
            bench = Bench(fresh.case, lagging)
            loads = [bench.sustained(best, seed, start) for seed in seeds]
            found.append(float(np.exp(np.mean(np.log(loads)))))
        lines.append(LaggedLoads(best, tuple(found)))
        print(f"{trace} {best.name} {best.shape} {found}", file=sys.stderr, flush=True)
    return lines


def table(trace: str, lines: Sequence[LaggedLoads]) -> str:
    """Markdown."""
    heads = [f"{h:g} s, {e:g} s" for h, e in LAGS]
    text = [
        f"| {trace}: load each, caches after | fleet | {' | '.join(heads)} |",
        f"|---|---|{'---:|' * len(LAGS)}",
    ]
    text += [
        f"| {line.contender.name} | {line.contender.shape} "
        f"| {' | '.join(f'{load:.2f}' for load in line.goodput)} |"
        for line in lines
    ]
    return "\n".join(text)


def rows(trace: str, lines: Sequence[LaggedLoads]) -> list[Row]:
    """Ours, told, beside the best peer at each lag."""
    (ours,) = (line for line in lines if line.contender.tells)
    peers = [line for line in lines if line.contender.policy != OURS]
    return [
        at_least(
            f"{trace}, load each {heartbeat_s:g} s, caches after {event_s:g} s", ours.goodput[i],
            max(line.goodput[i] for line in peers), 1.0,
        )
        for i, (heartbeat_s, event_s) in enumerate(LAGS)
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments("simulate.stale", __doc__)
    parser.add_argument("--traces", default="multi_turn,pictures", help="of the simulator's")
    parser.add_argument("--workers", type=int, default=8, help="workers of each fleet (8)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds measured, 1 to 10 (3)")
    parser.add_argument("--profile", default="calibrated", choices=tuple(PROFILES))
    args = parser.parse_args(argv)
    names = args.traces.split(",")
    if unknown := set(names) - set(TRACES):
        parser.error(f"--traces: no such trace: {', '.join(sorted(unknown))}")
    if args.quick:
        names, args.workers, args.seeds = names[:1], 4, 1
    profile, found = replace(PROFILES[args.profile](), rate_error=RATE_ERROR), []
    for name in names:
        lines = study(name, profile, args.workers, _SEEDS[: args.seeds])
        print(table(name, lines))
        found += rows(name, lines)
    return finish(found, args.json)


if __name__ == "__main__":
    sys.exit(main())
