"""Every policy on every workload: tuned on one seed, measured on others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulate.contenders import OURS, Contender, published, trials
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.metrics import Outcome, outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import Session
from benchmarks.simulate.records import Span
from benchmarks.simulate.simulation import Simulation
from benchmarks.simulate.study_results import Case, CaseResult, ContenderResult, best_result

GOOD = 0.9
LOADS = (0.6, 0.8, 1.0, 1.2, 1.5, 2.0)  # of the best peer's sustained goodput
SHED_MS = (10_000.0, 2_000.0, 500.0)  # queues at which peers may refuse under overload
_OVERLOAD_S = 120.0  # measured of each run beyond capacity
_STEP = 1.12
_LARGEST_STEP = 1.8
_MOST_STEPS = 10
_BETTER = 1.02
_LEAST_REQUESTS = 400  # measured: a share of 0.9 of these is known within 0.03


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
        least = max(span.least_s, max(_LEAST_REQUESTS, self.case.least) / pace)
        span = replace(span, least_s=least, most_s=max(span.most_s, 2 * least))
        return self._kept(contender, seed, pace, replace(span, hopeless=1.0) if whole else span)

    def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
        """One run that is measured for so long, however long its requests live."""
        span = Span(self.case.span.warm_s, seconds, lifetimes=0.0, most_s=seconds)
        return self._kept(contender, seed, pace, span)

    def _kept(self, contender: Contender, seed: int, pace: float, span: Span) -> Outcome:
        self.runs += 1
        case = self.case
        key = (case.name, case.digest, case.aims, self.profile, contender, seed, pace, span)
        return self.memo.of(
            key, lambda: self._run(contender, seed, pace, span), moves=contender.elastic
        )

    def _run(self, contender: Contender, seed: int, pace: float, span: Span) -> Outcome:
        if seed not in self._sessions:
            self._sessions[seed] = self.case.make(seed)
        simulation = Simulation(
            self.profile, contender.shape, contender.config(seed), self.case.aims, seed,
            tells=contender.tells, elastic=contender.elastic,
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


def study(
    case: Case, profile: Profile, peers: Sequence[str], tuning: int, seeds: Sequence[int],
    draws: int, say: Callable[[str], None], memo: Memo | None = None,
) -> CaseResult:  # fmt: skip
    """Ours beside `peers`: tuned on one seed by `draws` trials each, measured on `seeds`."""
    bench = Bench(case, profile, memo or Memo())
    found: list[tuple[Contender, tuple[float, ...]]] = []
    start = case.pace
    for policy in (OURS, *peers):
        for contender in entries(bench, policy, tuning, start, draws):
            loads = _loads(bench, contender, seeds, start)
            start = loads[-1]
            found.append((contender, loads))
            say(f"{case.name:12} {contender.name:20} {contender.shape} {np.mean(loads):8.2f} /s")
    others = [(float(np.exp(np.mean(np.log(v)))), c) for c, v in found if c.policy != OURS]
    pace, peer = max(others, key=lambda one: one[0])
    lines = tuple(
        ContenderResult(contender, loads, bench.run(contender, seeds[0], pace, whole=True))
        for contender, loads in found
    )
    ours = [line for line in lines if line.contender.policy == OURS]
    shown = [best_result(x for x in ours if x.contender.tells == tells).contender
             for tells in (False, True)]  # fmt: skip
    curves = _curves(bench, [*shown, peer], seeds, pace)
    return CaseResult(case, lines, pace, curves, bench.runs)


def entries(bench: Bench, policy: str, seed: int, start: float, draws: int) -> list[Contender]:
    """As published, in each kind, and tuned, each with the fleet that suits it. Trials are on the
    fleets that suited the published kinds of workers of one role, and begin at the best load found;
    of ours apart for a master that is told the objectives, and for one that is not."""
    found = []
    for kind in published(policy, bench.case.shapes):
        found.append(best_fleet(bench, kind, seed, start))
        start = found[-1][1]
    load = max(found, key=lambda one: one[1])[1]
    shapes = list(dict.fromkeys(one.shape for one, _ in found if not one.elastic))
    contenders = [one for one, _ in found]
    for tells in sorted({one.tells for one in contenders}):
        choices = trials(policy, shapes, draws, seed, tells=tells)
        if choices[0].options:
            contenders.append(best_of(bench, choices, seed, load)[0])
    return contenders


def _loads(
    bench: Bench, contender: Contender, seeds: Sequence[int], start: float
) -> tuple[float, ...]:
    loads: list[float] = []
    for seed in seeds:
        start = bench.sustained(contender, seed, start)
        loads.append(start)
    return tuple(loads)


def _curves(
    bench: Bench, shown: Sequence[Contender], seeds: Sequence[int], pace: float
) -> dict[str, list[list[Outcome]]]:
    """Attainment over offered load. Under overload a peer refuses by the queue that suits it best
    at that load."""
    return {
        one.name: [
            [_shedding(bench, one, seed, pace * factor, factor) for seed in seeds]
            for factor in LOADS
        ]
        for one in shown
    }


def _shedding(bench: Bench, one: Contender, seed: int, pace: float, factor: float) -> Outcome:
    if factor <= 1.0:
        return bench.run(one, seed, pace, whole=True)
    tried = [one]
    if one.policy != OURS:
        tried = [replace(one, options={**one.options, "busy_queue_ms": ms}) for ms in SHED_MS]
    # As long for all: queues grow, and who refuses less would be judged by a longer run.
    runs = (bench.run_for(c, seed, pace, _OVERLOAD_S) for c in tried)
    return max(runs, key=lambda outcome: outcome.goodput)
