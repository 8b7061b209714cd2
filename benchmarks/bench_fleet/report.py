"""What was measured of each contender at each rate, as a table and as rows with bars."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.bench_fleet.load import Answer
from benchmarks.bench_fleet.processes import TPOT_S, TTFT_S
from benchmarks.common.rows import Row, at_least

GOOD_SHARE = 0.9
ROUND_ROBIN_BAR, ROUTER_BAR, PAST_PEAK_BAR = 2.5, 1.3, 0.9
WITH_MASTER, ROUND_ROBIN, ROUTER = "proxy + master", "round robin", "vllm-router"


@dataclass(frozen=True)
class Measured:
    """Of one contender at one offered rate (requests/s), once it had settled."""

    rate: float  # offered, requests/s
    goodput: float  # requests/s that met both objectives
    share: float  # of those that came
    ttft_p50_s: float  # time to the first token
    ttft_p99_s: float  # of the slowest in a hundred
    tpot_p99_s: float  # time per further token, of the slowest in a hundred
    refused: int  # requests answered with 429 or 503
    broken: int  # requests that failed otherwise
    lifetimes: float  # median lifetimes of a request that the run was long
    item_hits: float  # share of items that were not encoded again
    prefix_hits: float  # share of prompt tokens that were cached
    bytes: float  # that encoders received per request


@dataclass(frozen=True)
class Objectives:
    """Seconds to the first token, and of each further one."""

    ttft_s: float = TTFT_S
    tpot_s: float = TPOT_S


def measured(
    rate: float, answers: Sequence[Answer], begin: float, end: float, used: Mapping[str, float],
    objectives: Objectives = Objectives(),
) -> Measured:  # fmt: skip
    """Of requests that came from `begin` to `end` (s) of the trace."""
    counted = [answer for answer in answers if begin <= answer.at < end]
    done = [answer for answer in counted if answer.status == 200]
    good = sum(answer.good(objectives.ttft_s, objectives.tpot_s) for answer in counted)
    lifetime = statistics.median(a.whole_s for a in done) if done else end - begin
    firsts = sorted(answer.first_s for answer in done)
    return Measured(
        rate,
        good / (end - begin),
        good / len(counted) if counted else 0.0,
        _quantile(firsts, 0.5),
        _quantile(firsts, 0.99),
        _quantile(sorted(answer.token_s for answer in done), 0.99),
        sum(answer.status in (429, 503) for answer in counted),
        sum(answer.status not in (200, 429, 503) for answer in counted),
        (end - begin) / max(lifetime, 1e-9),
        used["item_hits"] / max(1.0, used["items"]),
        used["token_hits"] / max(1.0, used["tokens"]),
        used["bytes"] / max(1, len(answers)),
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def sustained(curve: Sequence[Measured]) -> float:
    """The highest rate at which 90 % of requests are good: between two measured ones in proportion,
    0 if they are not at the lowest."""
    curve = sorted(curve, key=lambda one: one.rate)
    best = 0.0
    for before, after in zip([None, *curve], curve, strict=False):
        if after.share >= GOOD_SHARE:
            best = after.rate
        elif before is not None and before.share >= GOOD_SHARE:
            part = (before.share - GOOD_SHARE) / (before.share - after.share)
            return before.rate + part * (after.rate - before.rate)
    return best


def table(curves: Mapping[str, Sequence[Measured]]) -> list[str]:
    """A line for each contender and rate."""
    lines = [
        f"{'contender':16} {'offered':>8} {'goodput':>8} {'good':>6} {'TTFT p50':>9} {'p99':>7} "
        f"{'TPOT p99':>9} "
        f"{'refused':>8} {'broken':>7} {'encoder hits':>13} {'prefix hits':>12} {'kB/request':>11} "
        f"{'lifetimes':>10}"
    ]
    for name, curve in curves.items():
        lines += [
            f"{name:16} {m.rate:8.1f} {m.goodput:8.2f} {m.share:6.0%} {m.ttft_p50_s:8.2f}s "
            f"{m.ttft_p99_s:6.2f}s {1e3 * m.tpot_p99_s:6.1f} ms {m.refused:8d} {m.broken:7d} "
            f"{m.item_hits:13.0%} {m.prefix_hits:12.0%} {m.bytes / 1e3:11.1f} {m.lifetimes:10.1f}"
            for m in curve
        ]
    return lines


def rows(curves: Mapping[str, Sequence[Measured]], *, judged: bool) -> list[Row]:
    """`judged`: the bars count; a short run shows figures only."""
    mine, found = curves[WITH_MASTER], []
    for name, curve in curves.items():
        if name == WITH_MASTER:
            continue
        found += [
            at_least(f"goodput at {m.rate:g} requests/s, beside {name}", m.goodput, other.goodput)
            for m, other in zip(mine, curve, strict=True)
        ]
        bar = {ROUND_ROBIN: ROUND_ROBIN_BAR, ROUTER: ROUTER_BAR}.get(name)
        text = f"highest rate with 90 % within the objectives, beside {name}"
        found.append(at_least(text, sustained(mine), sustained(curve), bar if judged else None))
    rate = 2.0 * sustained(mine)
    twice, peak = _at(mine, rate), max(m.goodput for m in mine)
    offered = rate <= max(m.rate for m in mine)
    text = "goodput at twice that rate, beside its peak" + ("" if offered else " (not offered)")
    found.append(at_least(text, twice, peak, PAST_PEAK_BAR if judged and offered else None))
    return found


def _at(curve: Sequence[Measured], rate: float) -> float:
    """Goodput at a rate, between two that were measured; beyond them at the nearest."""
    curve = sorted(curve, key=lambda one: one.rate)
    for before, after in itertools.pairwise(curve):
        if before.rate <= rate <= after.rate:
            part = (rate - before.rate) / (after.rate - before.rate)
            return before.goodput + part * (after.goodput - before.goodput)
    return curve[0].goodput if rate < curve[0].rate else curve[-1].goodput
