"""`python -m benchmarks.simulate`: placement policies side by side on simulated fleets.

    python -m benchmarks.simulate [--quick] [--json FILE] [--out docs/benchmarks/simulate]
    python -m benchmarks.simulate --profile h200_7b           workers of H200s, by a roofline
    python -m benchmarks.simulate --file TRACE [--file …]     Mooncake's, Azure's, BurstGPT's format
    python -m benchmarks.simulate --chosen FOLDER             with the options that an earlier study
                                                              wrote there, without a search
    python -m benchmarks.simulate --calibrate models/demo     measure our workers' speed anew

One core. Exit status 0 if everything that must hold does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.common.plotting import check_plots
from benchmarks.common.rows import arguments, finish
from benchmarks.simulate import calibrate, report
from benchmarks.simulate.cases import case, file_case
from benchmarks.simulate.chosen import Chosen, read, write
from benchmarks.simulate.contenders import PEERS
from benchmarks.simulate.hardware import PROFILES
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.profile import CALIBRATED, RATE_ERROR, Profile
from benchmarks.simulate.study import study
from benchmarks.simulate.study_results import Case, CaseResult
from benchmarks.simulate.traces import TRACES

TUNING, SEEDS = 1, range(11, 21)
QUICK_TRACES, QUICK_PEERS, QUICK_WORKERS = ("multi_turn",), ("kv",), 4
_QUICK_WARM_S, _QUICK_REQUESTS = 20.0, 120


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.calibrate:
        print("\n".join(calibrate.run(args.calibrate, CALIBRATED, Profile.block_size)))
        return 0
    profile = replace(PROFILES[args.profile](), rate_error=args.rate_error)
    seeds = SEEDS[: args.seeds]
    try:
        cases = [(one, _chosen(args, profile, one)) for one in _cases(args, profile)]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    results: list[CaseResult] = []
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    memo = Memo(args.memo)
    for one, before in cases:
        start, found = time.process_time(), memo.found
        result = study(
            one, profile, args.peers, TUNING, seeds, args.trials, _say, memo,
            before.lines if before else (),
        )  # fmt: skip
        results.append(result)
        minutes = (time.process_time() - start) / 60
        lines = tuple((line.contender, line.goodput) for line in result.lines)
        chosen = before or Chosen(time.strftime("%Y-%m-%d"), args.trials, TUNING, lines)
        text = report.markdown(result, profile, chosen, seeds, minutes, memo.found - found)
        print(text)
        if args.out:  # after each workload, as the next one takes minutes
            _write(args.out, _name(profile, one), text, result)
            write(chosen, args.out / f"{_name(profile, one)}.json")
    return finish(report.rows(results), args.json)


def _name(profile: Profile, one: Case) -> str:
    return f"{profile.name}-{one.name}"


def _chosen(args: argparse.Namespace, profile: Profile, one: Case) -> Chosen | None:
    if not args.chosen:
        return None
    return read(args.chosen / f"{_name(profile, one)}.json", args.workers)


def _write(folder: Path, name: str, text: str, result: CaseResult) -> None:
    report.plot(result, folder / f"{name}.svg")
    plot = f"\n![Share of requests within their objectives]({name}.svg)\n"
    (folder / f"{name}.md").write_text(text + plot)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("simulate", __doc__)
    parser.add_argument(
        "--out", type=Path, help="folder for a page, a plot and the options of each workload"
    )
    said = "folder of an earlier study (--out): its options and fleets, in place of a search"
    parser.add_argument("--chosen", type=Path, help=said)
    parser.add_argument("--traces", default="", help=f"some of {','.join(TRACES)}; empty: all")
    parser.add_argument("--peers", default="", help=f"some of {','.join(PEERS)}; empty: all")
    parser.add_argument("--seeds", type=int, default=0, help="seeds measured, 1 to 10 (5)")
    parser.add_argument("--trials", type=int, default=0, help="random trials per policy (40)")
    parser.add_argument("--workers", type=int, default=0, help="workers of a fleet (16)")
    parser.add_argument("--memo", type=Path, help="folder of runs made before, to go on from")
    parser.add_argument("--profile", default="calibrated", choices=tuple(PROFILES))
    said = f"share by which workers misjudge their speed at most ({RATE_ERROR:g})"
    parser.add_argument("--rate-error", type=float, default=RATE_ERROR, help=said)
    parser.add_argument("--file", type=Path, action="append", help="a public trace, not ours")
    parser.add_argument("--calibrate", type=Path, help="measure our workers on this model")
    args = parser.parse_args(argv)
    check_plots(parser, "--out", args.out)
    if not 0.0 <= args.rate_error < 1.0:
        parser.error(f"--rate-error: {args.rate_error:g} is not a share from 0 to below 1")
    given = [name for name in args.peers.split(",") if name]
    args.peers = given or list(QUICK_PEERS if args.quick else PEERS)
    if unknown := set(args.peers) - set(PEERS):
        parser.error(f"--peers: no such policy: {', '.join(sorted(unknown))}")
    quick = args.quick
    args.seeds = args.seeds or (1 if quick else 5)
    args.trials = args.trials or (1 if quick else 40)
    args.workers = args.workers or (QUICK_WORKERS if quick else 16)
    return args


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cases(args: argparse.Namespace, profile: Profile) -> list[Case]:
    if args.file:
        names = [path.stem for path in args.file]
        if len(set(names)) < len(names):
            raise ValueError("--file: two traces of one name could not be told apart")
        return [file_case(path, profile, args.workers) for path in args.file]
    names = [name for name in args.traces.split(",") if name]
    names = names or list(QUICK_TRACES if args.quick else TRACES)
    if unknown := set(names) - set(TRACES):
        raise ValueError(f"no such trace: {', '.join(sorted(unknown))}")
    found = [case(name, profile, args.workers) for name in names]
    return [_quick(one) for one in found] if args.quick else found


def _quick(one: Case) -> Case:
    """The same in shorter runs, which do not tell policies apart that are alike."""
    return replace(one, least=_QUICK_REQUESTS, span=replace(one.span, warm_s=_QUICK_WARM_S))


if __name__ == "__main__":
    sys.exit(main())
