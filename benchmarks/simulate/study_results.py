"""A workload, the fleets it may go to, and what a study of it has found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.simulate.contenders import OURS, Contender
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.prompts import Session
from benchmarks.simulate.records import Objectives, Shape, Span

# Student's t for a 95 % interval, by degrees of freedom.
_STUDENT = (math.inf, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Case:
    """A workload and the fleets it may go to, of equally many workers; `make` gives its sessions
    for a seed. `pace` in requests/s is where the search for the sustained load begins."""

    name: str  # of the workload, as tables show it
    shapes: tuple[Shape, ...]  # fleets, each by its workers of each role
    pace: float
    span: Span  # how long a run lasts
    aims: Objectives  # objectives of the requests
    make: Callable[[int], Iterable[Session]]
    digest: str = ""  # of the file that a public trace is read from
    least: int = 0  # requests measured of each run, at the fewest

    def with_aims(self, aims: Objectives) -> Case:
        """The same under other objectives."""
        return replace(self, aims=aims)


@dataclass(frozen=True)
class ContenderResult:
    """A contender on a workload. Rates are requests/s, one for each seed."""

    contender: Contender
    sustained: tuple[float, ...]  # offered loads at which most requests keep their objectives
    # Requests at that load: a session offers its next turn only after an answer.
    arrived: tuple[float, ...]
    common: Outcome  # of a run at the common load

    @property
    def goodput(self) -> float:
        """Geometric mean over the seeds."""
        return geometric_mean(self.sustained)

    @property
    def arrival_rate(self) -> float:
        """Geometric mean over the seeds."""
        return geometric_mean(self.arrived)

    @property
    def interval(self) -> float:
        """Half the 95 % confidence interval of the mean over seeds; 0 of one seed."""
        return half_interval(self.sustained)


@dataclass(frozen=True)
class Curve:
    """Runs of a contender at each of `LOADS`, over seeds."""

    contender: Contender
    points: list[list[Outcome]]


@dataclass(frozen=True)
class CaseResult:
    """A case: its lines, ours first; `pace` is the common load, the best peer's sustained one;
    `curves` are at shares of it: the best of ours that is not told the objectives, of ours that is,
    the same under overload, the best of the peers, and of the peers under overload."""

    case: Case
    lines: tuple[ContenderResult, ...]
    pace: float
    curves: list[Curve]
    runs: int

    def ours(self, *, told: bool) -> ContenderResult | None:
        """The best of ours, as it comes and tuned as peers are."""
        lines = [x for x in self.lines if x.contender.policy == OURS and x.contender.tells == told]
        return best_result(lines) if lines else None

    def best_peer(self, *, told: bool) -> ContenderResult:
        """`told`: of all, else of those that know no objectives."""
        peers = (line for line in self.lines if is_peer(line.contender))
        return best_result(line for line in peers if told or not line.contender.tells)

    def ratio(self, *, told: bool) -> float:
        ours = self.ours(told=told)
        return ours.goodput / self.best_peer(told=told).goodput if ours else math.nan


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(float(np.mean(np.log(values))))


def is_peer(one: Contender) -> bool:
    return one.policy != OURS and not one.borrows


def best_result(lines: Iterable[ContenderResult]) -> ContenderResult:
    return max(lines, key=lambda line: line.goodput)


def half_interval(values: Sequence[float]) -> float:
    """Half the 95 % confidence interval of a mean, by Student's t; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT) - 1)]
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))
