"""`python -m benchmarks.simulate`: placement policies side by side on simulated fleets.

    python -m benchmarks.simulate [--quick] [--json FILE] [--out docs/benchmarks]
    python -m benchmarks.simulate --calibrate models/demo     measure our workers' speed anew
    python -m benchmarks.simulate --mooncake FILE             a trace in Mooncake's format
    python -m benchmarks.simulate --scale 1000                so many workers, one run per policy

One core. Exit status 0 if everything that must hold does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.rows import arguments, finish
from benchmarks.simulate import calibrate, report
from benchmarks.simulate.cases import COUNT, case, mooncake_case
from benchmarks.simulate.contenders import OURS, PEERS, Contender
from benchmarks.simulate.metrics import windows
from benchmarks.simulate.profile import CALIBRATED, Profile, calibrated, gpu_like
from benchmarks.simulate.study import LONG, Bench, Case, Result, study
from benchmarks.simulate.traces import TRACES

TUNING, SEEDS = range(1, 4), range(11, 21)
QUICK_TRACES = ("multi_turn", "pictures")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.calibrate:
        print("\n".join(calibrate.run(args.calibrate, CALIBRATED, Profile.block_size)))
        return 0
    profile = gpu_like() if args.profile == "gpu_like" else calibrated()
    if args.scale:
        return _scale(profile, args.scale)
    start = time.process_time()
    tuning = TUNING[: args.tuning or (1 if args.quick else len(TUNING))]
    seeds = SEEDS[: args.seeds or (1 if args.quick else len(SEEDS))]
    results = [study(c, profile, tuning, seeds, _say) for c in _cases(args, profile)]
    minutes = (time.process_time() - start) / 60
    text = report.markdown(results, profile, tuning, seeds, minutes)
    print(text)
    found = report.rows(results)
    if args.out:
        _write(args.out, text, results, profile)
    return finish(found, args.json)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("simulate", __doc__)
    parser.add_argument("--out", type=Path, help="folder for simulate.md and simulate.svg")
    parser.add_argument("--traces", default="", help=f"of {','.join(TRACES)}; all if empty")
    parser.add_argument("--seeds", type=int, default=0, help="of 10 to report, 0 for all")
    parser.add_argument("--tuning", type=int, default=0, help="of 3 seeds to tune on, 0 for all")
    parser.add_argument("--workers", type=int, default=64, help="in a fleet")
    parser.add_argument("--requests", type=int, default=0, help="of a trace, 0 for the default")
    parser.add_argument("--profile", default="calibrated", choices=("calibrated", "gpu_like"))
    parser.add_argument("--mooncake", type=Path, help="a trace in Mooncake's format instead")
    parser.add_argument("--calibrate", type=Path, help="measure our workers on this model")
    parser.add_argument("--scale", type=int, default=0, help="one run per policy on such a fleet")
    return parser.parse_args(argv)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cases(args: argparse.Namespace, profile: Profile) -> list[Case]:
    if args.mooncake:
        return [mooncake_case(args.mooncake, profile, args.workers)]
    count = args.requests or (500 if args.quick else COUNT)
    names = args.traces.split(",") if args.traces else QUICK_TRACES if args.quick else [*TRACES]
    return [case(name, profile, args.workers, count) for name in names]


def _write(folder: Path, text: str, results: Sequence[Result], profile: Profile) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    first = results[0]
    bench, series = Bench(first.case, profile, LONG), {}
    for policy in (OURS, *PEERS):
        simulation, _ = bench.simulate(Contender(policy), SEEDS[0], first.even_pace)
        workers = list(simulation.prefills.values())
        span = 0, int(simulation.records[-1].arrival / 10.0)
        held = windows(workers, "held", span)
        series[policy] = list(held.max(axis=0) / np.maximum(held.mean(axis=0), 1e-9))
    report.plots(results, series, folder / "simulate.svg")
    right = f"Right: {first.case.name}, at the load that keeps ours computing 80 % of the time."
    plot = f"\n![Goodput and imbalance](simulate.svg)\n\n{right}\n"
    (folder / "simulate.md").write_text(text + plot)


def _scale(profile: Profile, workers: int) -> int:
    """Every policy once on a large fleet at one load."""
    chosen = case("multi_turn", profile, workers, 25 * workers)
    bench = Bench(chosen, profile)
    for policy in (OURS, *PEERS):
        start = time.process_time()
        found = bench.run(Contender(policy), SEEDS[0], chosen.pace)
        print(
            f"{policy:14} {chosen.shapes[0]} {chosen.pace:8.1f} requests/s  within objectives "
            f"{found.attained:6.1%}  KV hits {found.kv_hits:5.1%}  TTFT p50/p99 "
            f"{found.ttft_p50:.0f}/{found.ttft_p99:.0f} ms  {time.process_time() - start:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
