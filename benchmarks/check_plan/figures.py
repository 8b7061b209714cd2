"""What runs were worth, predicted and measured, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.common.rows import Row
from benchmarks.simulate.metrics import Figures

BAR = (0.9, 1.1)


@dataclass(frozen=True)
class Point:
    """One fleet at one load. `predicted`: one for each seed of chance, of the same requests;
    `lag_ms`: of the client, 99 % of the time; `busy`: share of a core that each process used;
    `stages_ms`: what the proxy waited for until answers began, in the mean."""

    trace: str  # name of the requests' trace
    shape: str  # workers of each role, such as 1E2P2D
    load: float  # share of the load that the fleet is said to sustain
    predicted: tuple[Figures, ...]
    measured: Figures  # what the real fleet did
    lag_ms: float
    busy: Mapping[str, float]
    stages_ms: Mapping[str, float] = field(default_factory=dict)

    def mean(self, figure: Callable[[Figures], float]) -> float:
        return float(np.mean([figure(one) for one in self.predicted]))

    @property
    def ratio(self) -> float:
        """Of measured and predicted goodput."""
        predicted = self.mean(lambda one: one.goodput)
        return self.measured.goodput / predicted if predicted else math.inf


def row(point: Point, *, judged: bool) -> Row:
    """The bar is on goodput."""
    predicted = point.mean(lambda one: one.goodput)
    name = f"goodput of {point.shape} on {point.trace} at {point.load:g} of its load, requests/s"
    bar, holds = "", None
    if judged:
        bar, holds = f"ratio {BAR[0]:g} to {BAR[1]:g}", BAR[0] <= point.ratio <= BAR[1]
    return Row(name, point.measured.goodput, predicted, point.ratio, bar, holds)


def table(points: Sequence[Point]) -> str:
    """Markdown: measured / predicted, the mean over seeds of chance and, of goodput, the range."""
    lines = [
        "| fleet, trace | offered, requests/s | goodput measured / predicted (range) | ratio"
        " | attained | TTFT p50, ms | p99 | TPOT p50, ms | p99 | lifetimes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, points)])


def _line(point: Point) -> str:
    one = point.measured
    low, high = (f(p.goodput for p in point.predicted) for f in (min, max))
    goodput = point.mean(lambda p: p.goodput)

    def both(figure: Callable[[Figures], float], form: str) -> str:
        return f"{format(figure(one), form)} / {format(point.mean(figure), form)}"

    return (
        f"| {point.shape} {point.trace} | {one.offered:.2f} ({point.load:g} of its load)"
        f" | {one.goodput:.2f} / {goodput:.2f} ({low:.2f} to {high:.2f}) | {point.ratio:.2f}"
        f" | {both(lambda p: p.attained, '.0%')} | {both(lambda p: p.ttft_p50, '.0f')}"
        f" | {both(lambda p: p.ttft_p99, '.0f')} | {both(lambda p: p.tpot_p50, '.1f')}"
        f" | {both(lambda p: p.tpot_p99, '.1f')} | {one.lifetimes:.0f} |"
    )


def strain(point: Point) -> str:
    """What the run asked of this machine."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in point.busy.items())
    stages = ", ".join(f"{name} {ms:.0f} ms" for name, ms in point.stages_ms.items())
    late = f"client late by {point.lag_ms:.0f} ms at most (99 %)"
    return f"{late}; of a core: {shares}; until an answer began: {stages}"
