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
from benchmarks.simulate.cases import BARS
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.records import TPOT_TIMES, TTFT_TIMES
from benchmarks.simulate.study import GOOD, LOADS
from benchmarks.simulate.study_results import CaseResult, ContenderResult, half_interval

_LIFETIMES = 10.0
OVERLOAD_BAR = 1.3
_INTRODUCTION = """\
# The master's policy beside peers', simulated

Written by `python -m benchmarks.simulate`. Sessions arrive in an open loop, a turn only after the
answer that it quotes, and after a warm-up at least ten median request lifetimes are measured while
requests go on arriving. The master is the real one and workers run the real engine's scheduling
core, on virtual time: only the time of a step, of a message and of a copy come from a model. Every
policy has the same workers, tells the same loads (each {heartbeat:g} s), hears of the same caches
(after {event:g} ms) and may divide the fleet among the stages as suits it; all are tuned by
{trials} random trials on seed {tuning} and measured on {seeds} others.

**Sustained goodput** is the highest offered load at which {good:.0%} of requests are within both
objectives: first token within {ttft:g}× what it takes on an idle fleet with empty caches (that of
the mean request if the request's own is less), time per output token within {tpot:g}×. ± is half of
the 95 % confidence interval over seeds. Seeds differ more than policies do, so the interval of a
ratio is of pairs, both on one seed. The other columns are of one run at a common load, that
which the best peer sustains; E, P and D are the shares of the time that these workers computed.

Peers, from their sources: `kv` is Dynamo's KV router (1.4 to 1.6), with its prefill router, which
does not count active blocks, and its conditional disaggregation, by which a decode worker computes
short rests of a prompt; `rtp` is RTP-LLM's, `cache_aware` SGLang's gateway's and vLLM's router's.
Peers get our content keys over text and pictures, our index and our overlap of stages, which is
more than they have; they choose encoders as published (`kv`, `round_robin` in turn, others at
random). Under overload the peer may refuse by the queue that suits it best at that load.
`cost` is ours; "told" is with a master that knows a request's objectives and refuses what cannot
keep them, which peers have no notion of, "largest" the largest ones first. "any": every worker may
serve any role, as no peer's can; the fleet is how they begin, and the master moves them.
"""


def markdown(
    results: Sequence[CaseResult], profile: Profile, tuning: int, seeds: Sequence[int], trials: int,
    minutes: float, kept: int = 0,
) -> str:  # fmt: skip
    """`kept`: how many of the runs were made by processes before, which `minutes` do not count."""
    parts = [
        _INTRODUCTION.format(
            heartbeat=profile.heartbeat_s, event=profile.event_s * 1e3, good=GOOD, tuning=tuning,
            seeds=len(seeds), trials=trials, ttft=TTFT_TIMES, tpot=TPOT_TIMES,
        ),
        table(rows(results), "## What must hold"),
    ]  # fmt: skip
    parts += [_section(result) for result in results]
    parts.append(_timing(profile))
    runs = sum(result.runs for result in results)
    parts.append(
        f"{time.strftime('%Y-%m-%d')}: {runs} runs, {minutes:.0f} minutes of processor time"
        f"{f' for all but {kept} that were made before' if kept else ''}; python "
        f"{platform.python_version()}, numpy {np.__version__}."
    )
    return "\n".join(parts) + "\n"


def _section(result: CaseResult) -> str:
    lines = sorted(result.lines, key=lambda line: -line.goodput)
    lifetimes = min(line.common.lifetimes for line in lines)
    text = [
        f"\n## {result.case.name}\n",
        f"{result.case.shapes[0].total} workers; common load {result.pace:.3g} requests/s, "
        f"measured for at least {lifetimes:.0f} lifetimes. Ours to the best peer: "
        f"{_ratio(result, told=True)} told of the objectives, {_ratio(result, told=False)} not.\n",
        "| policy | fleet | sustained goodput, requests/s | in both objectives "
        "| TTFT p50 / p99, ms | TPOT p50 / p99, ms | KV hits | EC hits | E / P / D busy |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(line) for line in lines),
        "\nShare within both objectives (and goodput, requests/s) against offered load, as a share "
        "of the common load:\n",
        f"| policy | {' | '.join(f'{load:g}' for load in LOADS)} |",
        f"|---|{'---|' * len(LOADS)}",
        *(_curve(name, points) for name, points in result.curves.items()),
    ]
    return "\n".join(text)


def _ratio(result: CaseResult, *, told: bool) -> str:
    low, high = pair_interval(result, told=told)
    return f"**{result.ratio(told=told):.2f}** ({low:.2f} to {high:.2f})"


def pair_interval(result: CaseResult, *, told: bool) -> tuple[float, float]:
    """The 95 % confidence interval of `ratio`, by the ratios on each seed; of one seed a point."""
    ours = result.ours(told=told)
    if ours is None:
        return math.nan, math.nan
    pairs = np.log(ours.sustained) - np.log(result.best_peer.sustained)
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
        f"| {run.attained:.1%} | {run.ttft_p50:.0f} / {run.ttft_p99:.0f} "
        f"| {run.tpot_p50:.1f} / {run.tpot_p99:.1f} | {run.kv_hits:.0%} | {encoders} | {busy} |"
    )


def _curve(name: str, points: Sequence[Sequence[Outcome]]) -> str:
    cells = []
    for runs in points:
        shares = [run.attained for run in runs]
        error = half_interval(shares)
        said = f" ± {error:.0%}" if error else ""
        goodput = float(np.mean([run.goodput for run in runs]))
        cells.append(f"{np.mean(shares):.0%}{said} ({goodput:.3g})")
    return f"| {name} | {' | '.join(cells)} |"


def overload(result: CaseResult) -> tuple[float, float, str]:
    """Goodput at the highest of `LOADS`, in requests/s: ours, the peer's, and its name."""
    last = {
        n: float(np.mean([r.goodput for r in points[-1]])) for n, points in result.curves.items()
    }
    peer = result.best_peer.contender.name
    return max(value for name, value in last.items() if name != peer), last[peer], peer


def rows(results: Sequence[CaseResult]) -> list[Row]:
    """Ours over the best peer: sustained goodput with a master that knows the objectives and with
    one that does not, and goodput at twice what that peer sustains."""
    found: list[Row] = []
    for result in results:
        name, peer = result.case.name, result.best_peer
        for told in (True, False):
            ours = result.ours(told=told)
            if ours is not None:
                said = f"sustained goodput, {name}, {'told' if told else 'not told'} "
                said += f"(ours: {ours.contender.name}; peer: {peer.contender.name})"
                bar = BARS.get(name, 1.0) if told else 1.0
                found.append(at_least(said, ours.goodput, peer.goodput, bar))
        lifetimes = min(line.common.lifetimes for line in result.lines)
        found.append(
            at_least(f"shortest run, median lifetimes, {name}", lifetimes, _LIFETIMES, 1.0)
        )
    for result in results:
        mine, theirs, peer_name = overload(result)
        said = f"goodput at {LOADS[-1]:g} times that load, {result.case.name} (peer: {peer_name})"
        found.append(at_least(said, mine, theirs, OVERLOAD_BAR))
    return found


def _timing(profile: Profile) -> str:
    lines = [f"\n## Timing: {profile.name}\n"]
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


def plots(results: Sequence[CaseResult], path: Path) -> None:
    """For every workload the share within the objectives against the offered load."""
    from matplotlib import pyplot

    columns = min(4, len(results))
    height = -(-len(results) // columns)
    figure, axes = pyplot.subplots(
        height, columns, figsize=(3.6 * columns, 2.8 * height), layout="constrained", squeeze=False
    )
    for axis, result in zip(axes.flat, results, strict=False):
        for name, points in result.curves.items():
            offered = [float(np.mean([run.offered for run in runs])) for runs in points]
            shares = [[run.attained for run in runs] for runs in points]
            errors = [half_interval(values) for values in shares]
            axis.errorbar(
                offered, [float(np.mean(v)) for v in shares], errors, label=name, capsize=2
            )
        axis.axhline(GOOD, color="black", linewidth=0.6)
        axis.set_title(result.case.name, fontsize=9)
        axis.set_ylim(0.0, 1.02)
        axis.legend(fontsize=6)
    for axis in axes.flat[len(results) :]:
        axis.remove()
    figure.supxlabel("offered, requests/s", fontsize=8)
    figure.supylabel("within both objectives", fontsize=8)
    save(figure, path)
