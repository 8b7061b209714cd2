"""The results as Markdown, as rows of JSON and as pictures."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.plotting import save
from benchmarks.common.rows import Row, at_least
from benchmarks.common.rows import markdown as table
from benchmarks.simulate.bench import GOOD
from benchmarks.simulate.cases import BARS
from benchmarks.simulate.chosen import Chosen
from benchmarks.simulate.contenders import OURS
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.study import LOADS
from benchmarks.simulate.study_results import CaseResult, ContenderResult, Curve, half_interval

_LIFETIMES = 10.0
OVERLOAD_BAR = 1.3
_INTRODUCTION = """\
# {case}: the master's policy beside peers', simulated

Written by `python -m benchmarks.simulate`; [simulate.md](../simulate.md) says how it is measured,
who the peers are and what the words mean. {workers} workers, {profile}; each tells its load every
{heartbeat:g} s and is wrong about its speed by up to {error:.0%}, what its cache has gained or lost
is known after {event:g} ms. Each policy was tuned on {date} by {trials} random trials on seed
{tuning} and by the limits that suited others; of each kind the line that did best there was
measured on {seeds} other seeds.
"""


def markdown(
    result: CaseResult, profile: Profile, chosen: Chosen, seeds: Sequence[int], minutes: float,
    kept: int = 0,
) -> str:  # fmt: skip
    """Of one workload; `chosen` says how it was tuned. `kept`: how many of the runs were made by
    processes before, which `minutes` do not count."""
    introduction = _INTRODUCTION.format(
        case=result.case.name, workers=result.case.shapes[0].total, profile=profile.name,
        heartbeat=profile.heartbeat_s, error=profile.rate_error, event=profile.event_s * 1e3,
        date=chosen.date, trials=chosen.trials, tuning=chosen.tuning, seeds=len(seeds),
    )  # fmt: skip
    made = (
        f"{time.strftime('%Y-%m-%d')}: {result.runs} runs, {minutes:.0f} minutes of processor time"
        f"{f' for all but {kept} that were made before' if kept else ''}; python "
        f"{platform.python_version()}, numpy {np.__version__}."
    )
    held = table(rows([result]), "## What must hold")
    parts = [introduction, held, _section(result), _timing(profile), made]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _section(result: CaseResult) -> str:
    lines = sorted(result.lines, key=lambda line: -line.goodput)
    lifetimes = min(line.common.lifetimes for line in lines)
    text = [
        "## The policies\n",
        f"Common load {result.pace:.3g} requests/s, measured for at least {lifetimes:.0f} "
        f"lifetimes. Ours to the best peer: {_ratio(result, told=True)} told of the objectives, "
        f"{_ratio(result, told=False)} not.\n",
        "| policy | fleet | sustained goodput, requests/s | arrived, requests/s "
        "| in both objectives | TTFT p50 / p99, ms | TPOT p50 / p99, ms | KV hits | EC hits "
        "| E / P / D busy |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_line(line) for line in lines),
        "\nShare within both objectives (and goodput, requests/s) against offered load, as a share "
        "of the common load:\n",
        f"| policy | {' | '.join(f'{load:g}' for load in LOADS)} |",
        f"|---|{'---|' * len(LOADS)}",
        *map(_curve, result.curves),
        *_drawn_for_overload(result),
    ]
    return "\n".join(text)


def _drawn_for_overload(result: CaseResult) -> list[str]:
    """The options of those curves that are of no line."""
    lines = [line.contender for line in result.lines]
    others = [curve.contender for curve in result.curves if curve.contender not in lines]
    if not others:
        return []
    said = [f"- {one.name}, {one.shape}: {one.chosen() or 'the defaults'}" for one in others]
    return ["\nDrawn for the highest load:\n", *said]


def _ratio(result: CaseResult, *, told: bool) -> str:
    low, high = pair_interval(result, told=told)
    return f"**{result.ratio(told=told):.2f}** ({low:.2f} to {high:.2f})"


def pair_interval(result: CaseResult, *, told: bool) -> tuple[float, float]:
    """The 95 % confidence interval of `ratio`, by the ratios on each seed; of one seed a point."""
    ours = result.ours(told=told)
    if ours is None:
        return math.nan, math.nan
    pairs = np.log(ours.sustained) - np.log(result.best_peer(told=told).sustained)
    mean, half = float(np.mean(pairs)), half_interval(pairs.tolist())
    return math.exp(mean - half), math.exp(mean + half)


def _line(line: ContenderResult) -> str:
    run, name = line.common, line.contender.name
    if line.contender.options:
        name += f": {line.contender.chosen()}"
    encoders = f"{run.ec_hits:.0%}" if line.contender.shape.encode else ""
    busy = " / ".join(
        f"{run.utilisation[role]:.0%}" if role in run.utilisation else "–"
        for role in ("encode", "prefill", "decode")
    )
    if line.contender.elastic:
        busy = f"{run.utilisation['decode']:.0%} of all"
    return (
        f"| {name} | {line.contender.shape} | {line.goodput:.3g} ± {line.interval:.2g} "
        f"| {line.arrival_rate:.3g} | {run.attained:.1%} | {run.ttft_p50:.0f} / {run.ttft_p99:.0f} "
        f"| {run.tpot_p50:.1f} / {run.tpot_p99:.1f} | {run.kv_hits:.0%} | {encoders} | {busy} |"
    )


def _curve(curve: Curve) -> str:
    cells = []
    for runs in curve.points:
        shares = [run.attained for run in runs]
        error = half_interval(shares)
        said = f" ± {error:.0%}" if error else ""
        goodput = float(np.mean([run.goodput for run in runs]))
        cells.append(f"{np.mean(shares):.0%}{said} ({goodput:.3g})")
    return f"| {curve.contender.name} | {' | '.join(cells)} |"


def overload(result: CaseResult) -> tuple[float, float, str]:
    """Goodput at the highest of `LOADS`, in requests/s: ours, the peer's, and its name."""
    last = [
        (float(np.mean([run.goodput for run in curve.points[-1]])), curve.contender)
        for curve in result.curves
    ]
    ours = max(goodput for goodput, one in last if one.policy == OURS)
    theirs, peer = max((x for x in last if x[1].policy != OURS), key=lambda x: x[0])
    return ours, theirs, peer.name


def rows(results: Sequence[CaseResult]) -> list[Row]:
    """Ours over the best peer: sustained goodput with a master that knows the objectives and with
    one that does not, and goodput at twice what that peer sustains."""
    found: list[Row] = []
    for result in results:
        name = result.case.name
        for told in (True, False):
            ours, peer = result.ours(told=told), result.best_peer(told=told)
            if ours is not None:
                said = f"sustained goodput, {name}, {'told' if told else 'not told'} "
                said += f"(ours: {ours.contender.name}; peer: {peer.contender.name})"
                bar = BARS.get(name, 1.0) if told else 1.0
                found.append(at_least(said, ours.goodput, peer.goodput, bar))
                said = f"requests/s that arrived then, {name}, {'told' if told else 'not told'}"
                found.append(at_least(said, ours.arrival_rate, peer.arrival_rate))
        lifetimes = min(line.common.lifetimes for line in result.lines)
        found.append(
            at_least(f"shortest run, median lifetimes, {name}", lifetimes, _LIFETIMES, 1.0)
        )
    for result in results:
        mine, theirs, peer_name = overload(result)
        said = f"goodput at {LOADS[-1]:g} times that load, {result.case.name} (peer: {peer_name})"
        found.append(at_least(said, mine, theirs, OVERLOAD_BAR))
    return found


def plot(result: CaseResult, path: Path) -> None:
    """The share within the objectives against the offered load."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.0, 3.6), layout="constrained")
    for curve in result.curves:
        offered = [float(np.mean([run.offered for run in runs])) for runs in curve.points]
        shares = [[run.attained for run in runs] for runs in curve.points]
        means, errors = zip(*((float(np.mean(v)), half_interval(v)) for v in shares), strict=True)
        axis.errorbar(offered, means, errors, label=curve.contender.name, capsize=2)
    axis.axhline(GOOD, color="black", linewidth=0.6)
    axis.set(ylim=(0.0, 1.02), xlabel="offered, requests/s", ylabel="within both objectives")
    axis.set_title(result.case.name, fontsize=9)
    axis.legend(fontsize=7)
    save(figure, path)


def _timing(profile: Profile) -> str:
    """What the simulated workers take, and where that is from."""
    lines = [f"## Timing: {profile.name}\n"]
    if profile.facts:
        facts = profile.facts
        lines.append(
            f"Measured by `--calibrate` on {facts['date']}, {facts['hardware']}, real workers on "
            f"`{facts['model']}`. Prompts longer than its 4096 tokens are extrapolated.\n"
        )
        lines += [
            f"- {name}: {fit['points']} points, relative error of the fit {fit['mean_error']:.1%} "
            f"on average, {fit['max_error']:.1%} at most"
            for name, fit in facts["fits"].items()
        ]
    else:
        lines.append(
            "Reckoned from data sheets by a roofline (`benchmarks.simulate.hardware` says how); "
            "nothing of it was run on a GPU.\n"
        )
    names = [n for n in profile.timing.__dataclass_fields__ if n != "speed"]
    lines.append("\n| ms | |\n|---|---|")
    lines += [f"| {name} | {getattr(profile.timing, name):.5g} |" for name in names]
    return "\n".join(lines) + "\n"
