"""The results as Markdown, as rows of JSON and as pictures."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.common.rows import markdown as table
from benchmarks.simulate.cases import BARS
from benchmarks.simulate.metrics import TPOT_TIMES, TTFT_TIMES
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.study import GOOD, Line, Result
from benchmarks.simulate.worker import WINDOW_S

EVEN_BAR = 2.0

_INTRODUCTION = """\
# The master's policy beside peers', simulated

Written by `python -m benchmarks.simulate`. The master is the real one (`services.master`), on
virtual time; workers are the real engine's scheduling core (`services.engine.scheduling`), with the
mock workers' timing model in place of a model; loads are reported every {heartbeat:g} s, cache
events arrive after {event:g} ms, messages take {message:g} ms.
Everything but the choice of workers is the same for all policies: peers get our content keys over
text *and* pictures, our index, our accounting of load and our overlap of stages, which is more than
they have. Peers choose encoders as published: `kv` and `round_robin` in turn, `rtp`,
`cache_aware` and `random` at random, and they ask an encoder for every picture.

**Goodput** is the highest load at which {good:.0%} of requests are within both objectives
(DistServe's and EPD's definition): first token within {ttft:g}× what it takes on an idle fleet with
empty caches (that of the mean request if the request's own is less), time per output token within
{tpot:g}×. Means are geometric, over seeds {seeds}; ± is one standard error. Peers are at their
published defaults and tuned: the best of a small grid on seeds {tuning}, not among the former.
Where there are pictures every policy also has the split of the same number of workers that suited
it best there. Other columns are of one run at a common load, that which the best peer sustains.
`cost` leaves the rest of a prompt to a decode worker that has most of it; "always apart" is without
that.

**Balance** is the p99, over workers and windows of {window:g} s, of the time that requests are
queued and running, to its mean: of `cost`, at 80 % utilisation of the busiest stage. What it would
be if the same were evenly spread over the workers at every moment is said beside it: no choice of
workers comes below that.
"""


def markdown(
    results: Sequence[Result], profile: Profile, tuning: Sequence[int], seeds: Sequence[int],
    minutes: float,
) -> str:  # fmt: skip
    parts = [
        _INTRODUCTION.format(
            heartbeat=profile.heartbeat_s, event=profile.event_s * 1e3,
            message=profile.message_s * 1e3, good=GOOD, ttft=TTFT_TIMES, tpot=TPOT_TIMES,
            seeds=_span(seeds), tuning=_span(tuning), window=WINDOW_S,
        )
    ]  # fmt: skip
    parts += [_section(result) for result in results]
    parts += [table(rows(results), "\n## What must hold"), _timing(profile)]
    runs = sum(result.runs for result in results)
    parts.append(
        f"{runs} runs, {minutes:.0f} minutes of processor time; python "
        f"{platform.python_version()}, numpy {np.__version__}."
    )
    return "\n".join(parts) + "\n"


def _span(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])


def _section(result: Result) -> str:
    lines = sorted(result.lines, key=lambda line: -line.goodput)
    shape = result.case.shapes[0]
    text = [
        f"\n## {result.case.name}\n",
        f"{shape.encode + shape.prefill} encoders and prefill workers, {shape.decode} decode "
        f"workers; common "
        f"load {result.pace:.3g} requests/s. Ours to the best peer: **{result.ratio:.3f}**.\n",
        "| policy | E + P | goodput, requests/s | in both objectives | TTFT p50 / p99, ms "
        "| TPOT p50 / p99, ms | KV hits | EC hits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*text, *(_line(line, result) for line in lines)])


def _line(line: Line, result: Result) -> str:
    run, name = line.common, line.contender.name
    shape = result.case.shapes[line.contender.split]
    if line.contender.tuned:
        name += f": {line.contender.chosen()}"
    encoders = f"{run.ec_hits:.0%}" if "encode" in run.imbalance else ""
    return (
        f"| {name} | {shape.encode} + {shape.prefill} "
        f"| {line.goodput:.3g} ± {_error(line.sustained):.2g} | {run.attained:.1%} "
        f"| {run.ttft_p50:.0f} / {run.ttft_p99:.0f} | {run.tpot_p50:.1f} / {run.tpot_p99:.1f} "
        f"| {run.kv_hits:.0%} | {encoders} |"
    )


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def rows(results: Sequence[Result]) -> list[Row]:
    """Ours over the best peer's goodput; for balance p99 over mean of the busiest stage at 80 %
    utilisation."""
    found: list[Row] = []
    for result in results:
        name, peer = result.case.name, result.best_peer
        said = f"goodput, {name} (peer: {peer.contender.name})"
        found.append(at_least(said, result.ours.goodput, peer.goodput, BARS.get(name, 1.0)))
    for result in results:
        stages = {n: u for n, u in result.even.utilisation.items() if n != "decode"}
        busiest = max(stages, key=lambda name: stages[name])
        said = (
            f"p99 of queued + running time to its mean, {busiest} at {stages[busiest]:.0%}, "
            f"{result.case.name} (evenly spread: {result.even.unsteadiness[busiest]:.2f})"
        )
        found.append(at_most(said, result.even.imbalance[busiest], 1.0, EVEN_BAR))
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
        lines.append("Orders of magnitude of a GPU, not measured by us.\n")
    names = [n for n in profile.timing.__dataclass_fields__ if n != "speed"]
    lines.append("\n| ms | |\n|---|---|")
    lines += [f"| {name} | {getattr(profile.timing, name):.5g} |" for name in names]
    return "\n".join(lines) + "\n"


def plots(results: Sequence[Result], series: Mapping[str, Sequence[float]], path: Path) -> None:
    """Goodput of every policy on every trace, and how uneven prefill workers were over time."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.5), layout="constrained")
    width = 0.8 / max(len(result.lines) for result in results)
    for place, line in enumerate(results[0].lines):
        name = line.contender.name
        heights = [
            next(o for o in r.lines if o.contender.name == name).goodput / r.best_peer.goodput
            for r in results
        ]
        left.bar([i + place * width for i in range(len(results))], heights, width, label=name)
    left.set_xticks([i + 0.4 - width / 2 for i in range(len(results))])
    left.set_xticklabels([r.case.name for r in results])
    left.set_ylabel("goodput over the best peer's")
    left.axhline(1.0, color="black", linewidth=0.6)
    left.legend(fontsize=7, ncols=2, loc="lower left")
    for name, values in series.items():
        right.plot([10 * i for i in range(len(values))], values, label=name)
    right.set_xlabel("seconds")
    right.set_ylabel("most over mean of queued + running, prefill")
    right.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
