"""Forecasts of the planner's simulator beside fleets of mock workers that are run for real.

    python -m benchmarks.check_plan [--quick] [--json FILE] [--only WORDS] [--loads 0.8,1,1.2]

Each fleet has real processes: a proxy, a master, and mock workers that take the time, and have the
pools and limits, of the simulated ones. It is sent the simulator's own requests at their own times,
in an open loop with causal sessions, at shares of the load that the planner says it sustains; the
forecast is for the same requests. Workers are slow on purpose: what is checked is queueing,
placement, caches and hand-over, not how fast this machine runs a proxy; how late the client was
and what processor time each process took is printed with each run. `--quick` shows that it works.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import uvloop

from benchmarks.check_plan import load, processes
from benchmarks.check_plan.asks import PictureAsks, RequestBody, text_asks
from benchmarks.check_plan.figures import Point, row, strain, table
from benchmarks.check_plan.workloads import CHECKED, TRACE_SEED, Checked, forecast, in_time, slow
from benchmarks.common.rows import arguments, finish, hardware, head, line
from benchmarks.simulate.metrics import figures
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Session
from benchmarks.simulate.traces import TRACES
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend

MODEL = Path(__file__).parents[2] / "models" / "demo"
SECONDS, QUICK_SECONDS = 75.0, 10.0
_CHANCES = range(1, 6)
_AFTER_S = 20.0  # requests go on arriving while the last ones that count end

Bodies = Callable[[Sequence[Session]], Mapping[str, RequestBody]]
"""Of all requests of some sessions, by their names."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    print(hardware(["aiohttp", "uvloop"], TRACE_SEED), datetime.datetime.now(datetime.UTC).date())
    chosen = [one for one in CHECKED if all(word in one.name for word in args.only.split())]
    points: list[Point] = []
    with tempfile.TemporaryDirectory() as folder:
        model = processes.model_copy(MODEL, Path(folder))
        with _bodies(model) as bodies:
            for checked in chosen[:1] if args.quick else chosen:
                points += _checked(checked, args, model, bodies)
    print("\n".join(["", table(points), "", *(f"{p.shape} {strain(p)}" for p in points), ""]))
    found = [row(point, judged=not args.quick) for point in points]
    print("\n".join([head(), *map(line, found)]))
    return finish(found, args.json)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("check_plan", __doc__)
    parser.add_argument("--only", default="", help="words of the fleets to run, as 0E1P2D chat")
    parser.add_argument("--loads", type=_shares, help="shares of the sustained load (0.8,1,1.2)")
    parser.add_argument(
        "--seconds", type=float, default=0.0, help=f"seconds measured at each load ({SECONDS:g})"
    )
    parser.add_argument("--sustained", type=float, default=0.0,
                        help="requests/s at a load of 1; 0: what the planner says")  # fmt: skip
    args = parser.parse_args(argv)
    args.loads = args.loads or ([1.0] if args.quick else [0.8, 1.0, 1.2])
    args.seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    return args


def _shares(text: str) -> list[float]:
    with contextlib.suppress(ValueError):
        found = [float(one) for one in text.split(",")]
        if all(0.0 < one < math.inf for one in found):
            return found
    raise argparse.ArgumentTypeError(f"'{text}' is not positive numbers with commas between them")


def _checked(
    checked: Checked, args: argparse.Namespace, model: Path, bodies: Bodies
) -> Iterable[Point]:
    profile = slow()
    sustained = args.sustained or checked.sustained(profile)
    print(f"{checked.name}: a load of 1 is {sustained:.2f} requests/s", file=sys.stderr)
    for share in args.loads:
        point = _point(checked, profile, share, sustained * share, args.seconds, model, bodies)
        print(f"{table([point])}\n{strain(point)}", file=sys.stderr)
        yield point


def _point(
    checked: Checked,
    profile: Profile,
    share: float,
    pace: float,
    seconds: float,
    model: Path,
    bodies: Bodies,
) -> Point:
    sessions = list(in_time(TRACES[checked.trace](profile.block_size, TRACE_SEED), pace, 1e3))
    span = checked.span(seconds)
    said = forecast(checked, profile, sessions, pace, span, _CHANCES)
    sent = in_time(sessions, pace, said.end_s + _AFTER_S)
    plan = load.LoadPlan(sent, bodies(sent), checked.aims(profile), pace, span.warm_s, said.end_s)
    with (
        tempfile.TemporaryDirectory() as logs,
        processes.fleet(
            profile, checked.counts, checked.begins, model, Path(logs), TRACE_SEED
        ) as fleet,
    ):
        run = uvloop.run(load.run(fleet.url, plan, fleet.processor_s))
    measured = said.end_s - span.warm_s
    begin, end = run.marks
    busy = {name: (end[name] - begin[name]) / measured for name in end}
    return Point(
        checked.trace, checked.fleet, share, said.found,
        figures(run.records, measured, run.over_s), run.lag_s * 1e3, busy, run.stages_ms,
    )  # fmt: skip


@contextlib.contextmanager
def _bodies(model: Path) -> Iterator[Bodies]:
    frontend = Frontend.load(FrontendConfig(model, served_model_names=(processes.NAME,)))
    with asyncio.Runner() as runner:
        try:
            yield lambda sessions: runner.run(_asks(sessions, frontend))
        finally:
            runner.run(frontend.close())


async def _asks(sessions: Sequence[Session], frontend: Frontend) -> Mapping[str, RequestBody]:
    """Bodies of all requests, made before the first is sent."""
    pictures, found = PictureAsks(frontend), {}
    for session in sessions:
        if session.turns[0].items:
            for turn in session.turns:
                found[turn.name] = await pictures.ask(turn)
        else:
            found |= {turn.name: ask for turn, ask in text_asks(session)}
    return found


if __name__ == "__main__":
    sys.exit(main())
