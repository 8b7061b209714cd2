"""What the planner is asked for, on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.common.plotting import check_plots
from benchmarks.plan.measured import fleet_profile
from benchmarks.simulate.hardware import PROFILES
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.traces import TRACES
from protocol.errors import ConfigError
from protocol.fleet_key import FleetOptions


@dataclass(frozen=True)
class Options:
    """What `triptych plan` is asked for."""

    trace: str  # a workload's name or a file
    rate: float  # requests/s
    ttft_s: float  # objective, s
    tpot_s: float  # objective, s
    good: float  # share of requests that must keep both objectives
    profile: Profile  # of the workers
    costs: Mapping[str, float]  # of a worker, by role
    most: int  # workers at most
    seeds: int  # runs that a fleet is judged by
    json: Path | None  # file to write, or None
    plot: Path | None  # file to write, or None


def parse(argv: Sequence[str] | None) -> Options:
    """Exits with 2 and one line that names the flag at fault."""
    parser = _parser()
    args = parser.parse_args(argv)
    check_plots(parser, "--plot", args.plot)
    try:
        slo = named(args.slo, ("ttft", "tpot"), "--slo")
        costs = dict(named(args.costs, ("encode", "prefill", "decode"), "--costs", "any"))
        profile = _profile(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except ConfigError as error:
        parser.error(error.message)
    costs.setdefault("any", max(costs.values()))
    if args.trace not in TRACES and not Path(args.trace).is_file():
        parser.error(f"--trace: '{args.trace}' is no file and none of {', '.join(TRACES)}")
    for flag, least in (("rate", 0.0), ("max_workers", 1), ("seeds", 0)):
        if not least < getattr(args, flag) < math.inf:
            name = flag.replace("_", "-")
            parser.error(f"--{name}: {getattr(args, flag)} is not a number above {least:g}")
    if not 0.0 < args.share <= 1.0:
        parser.error(f"--share: {args.share} is not within 0 to 1")
    return Options(
        args.trace, args.rate, slo["ttft"], slo["tpot"], args.share, profile, costs,
        args.max_workers, args.seeds, args.json, args.plot,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="triptych plan",
        description="The cheapest number of encode, prefill and decode workers that serves a "
        "workload within objectives, found by simulation on one core of this machine.",
    )
    models = ", ".join(PROFILES)
    add = parser.add_argument
    add("--trace", required=True, help=f"workload: {', '.join(TRACES)}, or a file in Mooncake's, "
        "Azure's or BurstGPT's format")  # fmt: skip
    add("--rate", type=float, required=True, help="requests per second that arrive")
    add("--slo", required=True, metavar="ttft=S,tpot=S",
        help="objectives: seconds to the first token, seconds per further token")  # fmt: skip
    add("--model", required=True, help=f"speed of the workers: {models}, or a JSON file such as "
        "benchmarks/simulate/calibrated.json, whose 'timing' holds milliseconds, or the URL of a "
        "master, whose workers have measured themselves")  # fmt: skip
    add("--fleet-key", default="", help="the fleet key that this master asks for")
    add("--fleet-key-file", default="", help="file that holds it")
    add("--share", type=float, default=0.9,
        help="share of requests that must keep both objectives (0.9)")  # fmt: skip
    add("--costs", default="encode=1,prefill=1,decode=1", help="cost of one worker of each role, "
        "in any unit (encode=1,prefill=1,decode=1); any: of the role any, the dearest of these if "
        "it is not given")  # fmt: skip
    add("--max-workers", type=int, default=128, help="workers of the largest fleet tried (128)")
    add("--seeds", type=int, default=2, help="simulated runs that a fleet is judged by (2)")
    add("--json", type=Path, help="write the plan to this file")
    add("--plot", type=Path, help="draw the curve into this file (needs the extra 'bench')")
    return parser


def named(text: str, names: Sequence[str], flag: str, *optional: str) -> dict[str, float]:
    """The positive numbers of "a=1,b=2". `ValueError` names what is missing or wrong."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in (*names, *optional):
            raise ValueError(f"{flag}: '{name}' is none of {', '.join(names)}")
        try:
            found[name] = float(value)
        except ValueError:
            raise ValueError(f"{flag}: {name}: '{value}' is no number") from None
        if not 0.0 < found[name] < 1e9:
            raise ValueError(f"{flag}: {name}: {value} is not positive")
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{flag}: {', '.join(missing)} is missing")
    return found


def _profile(args: argparse.Namespace) -> Profile:
    """`ConfigError` if a key for a master cannot be read, `ValueError` for all else."""
    model: str = args.model
    if model.startswith(("http://", "https://")):
        key = FleetOptions(fleet_key=args.fleet_key, fleet_key_file=args.fleet_key_file)
        return fleet_profile(model, key.read_fleet_key())
    if model in PROFILES:
        return PROFILES[model]()
    path = Path(model)
    if not path.is_file():
        raise ValueError(f"--model: '{model}' is no file and none of {', '.join(PROFILES)}")
    try:
        return calibrated(path)
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ValueError(f"--model: {model}: no 'timing' as in calibrated.json: {error}") from None
