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
from benchmarks.simulate.bench import Bench
from benchmarks.simulate.cases import case, file_case, requests
from benchmarks.simulate.records import Objectives
from benchmarks.simulate.traces import TRACES

_SAMPLE = 100
LOADS = (0.5, 0.75, 1.0, 1.1, 1.25, 1.5)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        planner = _planner(options)
    except (OSError, ValueError) as error:
        print(f"error: --trace: {error}", file=sys.stderr)
        return 2
    try:
        split = planner.cheapest()
    except NoFleet as error:
        print(f"error: no fleet suffices: {error}; raise --max-workers", file=sys.stderr)
        return 1
    plan = choose(planner, split)
    print(report.text(options, plan))
    if options.json:
        options.json.write_text(report.as_json(options, plan))
    if options.plot:
        report.plot(options, plan, options.plot)
    return 0


def choose(planner: Planner, split: Trial) -> report.Plan:
    """The cheapest of fixed roles, `split`, unless workers of the role any come cheaper."""
    moving = planner.of_any_role(split)
    best, other = split, moving
    if moving is not None and planner.price(moving) < planner.price(split):
        best, other = moving, split
    return report.Plan(
        best, planner.price(best), planner.around(best), planner.curve(best, LOADS), other,
        planner.price(other) if other is not None else 0.0,
    )  # fmt: skip


def _planner(options: Options) -> Planner:
    """`OSError` or `ValueError` if the trace cannot be read."""
    profile, most = options.profile, options.most
    if options.trace in TRACES:
        made = case(options.trace, profile, most)
    else:
        made = file_case(Path(options.trace), profile, most)
    aims = Objectives(profile, ttft_s=options.ttft_s, tpot_s=options.tpot_s)
    known = options.profile.timing.encode_s(1, 1) > 0.0
    if not known and any(one.items for one in requests(made.make(1), _SAMPLE)):
        raise ValueError("it has pictures, and the speed of no encode worker is known")
    return Planner(
        Bench(made.with_aims(aims), profile), options.rate, options.good, options.costs,
        range(1, options.seeds + 1), options.most, _say,
    )  # fmt: skip


def _say(trial: Trial) -> None:
    print(f"{trial.name:12} {trial.rate:9.4g} requests/s {trial.attained:6.1%}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
