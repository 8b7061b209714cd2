"""`triptych plan --trace T --rate R --slo ttft=1,tpot=0.05 --model M`.

Exit status 0 with a plan, 1 if no fleet of --max-workers suffices, 2 for a wrong flag.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.plan import report
from benchmarks.plan.options import Options, parse
from benchmarks.plan.search import NoFleet, Planner, Trial
from benchmarks.simulate.cases import case, file_case
from benchmarks.simulate.records import Objectives
from benchmarks.simulate.study import Bench
from benchmarks.simulate.traces import TRACES

LOADS = (0.5, 0.75, 1.0, 1.1, 1.25, 1.5)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        planner = _planner(options)
    except (OSError, ValueError) as error:
        print(f"error: --trace: {error}", file=sys.stderr)
        return 2
    try:
        best = planner.cheapest()
    except NoFleet as error:
        print(f"error: no fleet suffices: {error}; raise --max-workers", file=sys.stderr)
        return 1
    found = (best, planner.cost(best.shape), planner.around(best.shape),
             planner.curve(best.shape, LOADS))  # fmt: skip
    print(report.text(options, *found))
    if options.json:
        options.json.write_text(report.as_json(options, *found))
    if options.plot:
        report.plot(options, found[3], best.shape, options.plot)
    return 0


def _planner(options: Options) -> Planner:
    """`OSError` or `ValueError` if the trace cannot be read."""
    profile, most = options.profile, options.most
    if options.trace in TRACES:
        made = case(options.trace, profile, most)
    else:
        made = file_case(Path(options.trace), profile, most)
    aims = Objectives(profile, ttft_s=options.ttft_s, tpot_s=options.tpot_s)
    return Planner(
        Bench(made.with_aims(aims), profile), options.rate, options.good, options.costs,
        range(1, options.seeds + 1), options.most, _say,
    )  # fmt: skip


def _say(trial: Trial) -> None:
    print(f"{trial.shape!s:12} {trial.rate:9.4g} requests/s {trial.attained:6.1%}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
