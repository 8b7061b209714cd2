"""Runs of one workload: the load that a policy sustains, and the fleet that suits it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.simulate.contenders import Contender
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.metrics import Outcome, outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Session
from benchmarks.simulate.records import Span
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.study_results import Case

GOOD = 0.9
_STEP = 1.12
_LARGEST_STEP = 1.8
_MOST_STEPS = 10
_BETTER = 1.02


@dataclass
class Bench:
    """Runs of one case. Sessions are kept, since every policy sees the same. `memo`: runs that were
    made before, here or by a process that was ended."""

    case: Case
    profile: Profile
    memo: Memo = field(default_factory=Memo)
    runs: int = 0
    _sessions: dict[int, Iterable[Session]] = field(default_factory=dict)

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        """One run at `pace` requests/s. Unless `whole` it ends early where most requests are late,
        as a search needs to know no more."""
        span = self.case.span
        least = max(span.least_s, self.case.least / pace)
        span = replace(span, least_s=least, most_s=max(span.most_s, 2 * least))
        return self._kept(contender, seed, pace, replace(span, hopeless=1.0) if whole else span)

    def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
        """One run that is measured for so long, however long its requests live."""
        span = Span(self.case.span.warm_s, seconds, lifetimes=0.0, most_s=seconds)
        return self._kept(contender, seed, pace, span)

    def _kept(self, contender: Contender, seed: int, pace: float, span: Span) -> Outcome:
        self.runs += 1
        case, line = self.case, replace(contender, kind="")
        key = (case.name, case.digest, case.aims, self.profile, line, seed, pace, span)
        return self.memo.of(
            key, lambda: self._run(contender, seed, pace, span), moves=contender.elastic
        )

    def _run(self, contender: Contender, seed: int, pace: float, span: Span) -> Outcome:
        if seed not in self._sessions:
            self._sessions[seed] = self.case.make(seed)
        simulation = Simulation(
            self.profile, contender.shape, contender.config(seed), self.case.aims, seed,
            tells=contender.tells, elastic=contender.elastic, only_ttft=contender.only_ttft,
        )  # fmt: skip
        return outcome(simulation, simulation.run(self._sessions[seed], pace, span))

    def sustained(self, contender: Contender, seed: int, start: float) -> float:
        """Sustained goodput: the offered load in requests/s at which `GOOD` of the requests are
        within their objectives. Bracketed in steps that grow, halved until the
        bracket is one step, then interpolated over the logarithm of the load."""
        paces = {}

        def good(pace: float) -> bool:
            paces[pace] = self.run(contender, seed, pace)
            return paces[pace].attained >= GOOD

        low = high = start
        up, step = good(start), _STEP
        for _ in range(_MOST_STEPS):
            other = high * step if up else low / step
            if good(other) != up:
                low, high = (high, other) if up else (other, low)
                break
            low = high = other
            step = min(step * _STEP, _LARGEST_STEP)
        while high > low * _STEP * 1.01:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if good(middle) else (low, middle)
        below, above = paces[low], paces[high]
        if low == high or below.attained <= above.attained:
            return low
        part = (below.attained - GOOD) / (below.attained - above.attained)
        return float(low * (high / low) ** part)


def best_of(
    bench: Bench, contenders: Sequence[Contender], seed: int, start: float, load: float = 0.0
) -> tuple[Contender, float]:
    """The one with the highest sustained goodput, which is measured only of those that keep the
    objectives at a higher `load` than the best so far does, or than is given; at best 0."""
    best = contenders[0]
    for contender in contenders:
        if load and bench.run(contender, seed, load * _BETTER).attained < GOOD:
            continue
        found = bench.sustained(contender, seed, load * _BETTER or start)
        if found > load:
            best, load = contender, found
    return best, load


def best_fleet(
    bench: Bench, contenders: Sequence[Contender], seed: int, start: float
) -> tuple[Contender, float]:
    """`best_of` one kind of contender, then of fleets that differ from the best by one worker's
    role, as long as one is better. How workers of the role any begin matters little."""
    best, load = best_of(bench, contenders, seed, start)
    tried = {one.shape for one in contenders}
    while not best.elastic:
        near = [
            replace(best, shape=shape) for shape in best.shape.neighbours() if shape not in tried
        ]
        tried.update(one.shape for one in near)
        if not near:
            break
        other, found = best_of(bench, near, seed, start, load)
        if found <= load:
            break
        best, load = other, found
    return best, load
