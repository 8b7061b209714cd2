"""Every policy on every trace: tuned on some seeds, measured on others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulate.contenders import OURS, PEERS, Contender, apart, grid
from benchmarks.simulate.metrics import Objectives, Outcome, outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.prompts import TraceRequest
from benchmarks.simulate.records import Shape
from benchmarks.simulate.simulation import Simulation

GOOD = 0.9
LONG = 8
_STEP = 1.12
_MOST_STEPS = 12


@dataclass(frozen=True)
class Case:
    """A trace and the fleets it may go to, of equally many workers; `make` builds it for a seed, so
    many times as long. `pace` in requests/s is where the search for the sustained load begins."""

    name: str
    shapes: tuple[Shape, ...]
    pace: float
    make: Callable[[int, int], Sequence[TraceRequest]]


@dataclass
class Bench:
    """Runs of one case. Traces are kept, since every policy sees the same."""

    case: Case
    profile: Profile
    times: int = 1
    runs: int = 0
    _traces: dict[int, tuple[Sequence[TraceRequest], Objectives]] = field(default_factory=dict)

    def run(self, contender: Contender, seed: int, pace: float) -> Outcome:
        """One run of the trace of `seed` at `pace` requests/s."""
        return self.simulate(contender, seed, pace)[1]

    def simulate(self, contender: Contender, seed: int, pace: float) -> tuple[Simulation, Outcome]:
        if seed not in self._traces:
            trace = self.case.make(seed, self.times)
            self._traces[seed] = trace, Objectives.of(trace, self.profile)
        trace, aims = self._traces[seed]
        self.runs += 1
        shape = self.case.shapes[contender.split]
        simulation = Simulation(self.profile, shape, contender.config(seed), seed)
        return simulation, outcome(simulation, simulation.run(trace, pace), aims)

    def sustained(self, contender: Contender, seed: int, start: float) -> float:
        """The load at which `GOOD` of the requests are within the objectives, in requests/s:
        bracketed in steps, then interpolated over the logarithm of the load."""
        pace, share = start, self.run(contender, seed, start).attained
        up = share >= GOOD
        for _ in range(_MOST_STEPS):
            other = pace * _STEP if up else pace / _STEP
            found = self.run(contender, seed, other).attained
            if (found >= GOOD) != up:
                part = (share - GOOD) / (share - found)
                return float(pace * (other / pace) ** part)
            pace, share = other, found
        return pace


def best_of(
    bench: Bench, contenders: Sequence[Contender], seeds: Sequence[int], pace: float
) -> Contender:
    """By the mean share within the objectives at `pace`, of ties the first."""
    if len(contenders) == 1:
        return contenders[0]
    return max(
        contenders,
        key=lambda c: float(np.mean([bench.run(c, seed, pace).attained for seed in seeds])),
    )


def tuned(bench: Bench, policy: str, seeds: Sequence[int], pace: float) -> list[Contender]:
    """As published, and the best of the grid if there is one; each on the split that suits it."""
    splits = range(len(bench.case.shapes))
    published = best_of(bench, [Contender(policy, split=n) for n in splits], seeds, pace)
    choices = [replace(contender, split=published.split) for contender in grid(policy)]
    return [published, best_of(bench, choices, seeds, pace)] if choices else [published]


@dataclass(frozen=True)
class Line:
    """A contender on a trace: sustained load by seed, and what a run at a common load was like."""

    contender: Contender
    sustained: tuple[float, ...]
    common: Outcome

    @property
    def goodput(self) -> float:
        """Geometric mean over the seeds."""
        return math.exp(float(np.mean(np.log(self.sustained))))


@dataclass(frozen=True)
class Result:
    """A case: its lines, ours first; `pace` is the common load, the best peer's sustained one;
    `even` a long run at the load `even_pace` that keeps the busiest stage at 80 %."""

    case: Case
    lines: tuple[Line, ...]
    pace: float
    even: Outcome
    even_pace: float
    runs: int

    @property
    def ours(self) -> Line:
        return next(line for line in self.lines if line.contender.policy == OURS)

    @property
    def best_peer(self) -> Line:
        peers = [line for line in self.lines if line.contender.policy != OURS]
        return max(peers, key=lambda line: line.goodput)

    @property
    def ratio(self) -> float:
        return self.ours.goodput / self.best_peer.goodput


def study(
    case: Case, profile: Profile, tuning: Sequence[int], seeds: Sequence[int],
    say: Callable[[str], None],
) -> Result:  # fmt: skip
    """Tune peers on `tuning`, measure all on `seeds`."""
    bench = Bench(case, profile)
    found: list[tuple[Contender, tuple[float, ...]]] = []
    start = case.pace
    for policy in (OURS, *PEERS):
        start = bench.sustained(Contender(policy), tuning[0], start)
        contenders = tuned(bench, policy, tuning, start)
        for contender in [*contenders, *map(apart, contenders)] if policy == OURS else contenders:
            loads = _loads(bench, contender, seeds, start)
            found.append((contender, loads))
            say(f"{case.name:12} {contender.name:22} {np.mean(loads):8.2f} requests/s")
    peers = [np.exp(np.mean(np.log(loads))) for c, loads in found if c.policy != OURS]
    pace = float(max(peers))
    common = [bench.run(contender, seeds[0], pace) for contender, _ in found]
    lines = tuple(
        Line(contender, loads, run) for (contender, loads), run in zip(found, common, strict=True)
    )
    even_pace, even = at_utilisation(bench, found[0][0], seeds[0], 0.8, pace)
    return Result(case, lines, pace, even, even_pace, bench.runs)


def _loads(
    bench: Bench, contender: Contender, seeds: Sequence[int], start: float
) -> tuple[float, ...]:
    loads: list[float] = []
    for seed in seeds:
        start = bench.sustained(contender, seed, start)
        loads.append(start)
    return tuple(loads)


def at_utilisation(
    bench: Bench, contender: Contender, seed: int, wanted: float, pace: float
) -> tuple[float, Outcome]:
    """A long run at the load that keeps the busiest of encoders and prefill workers computing
    `wanted` of the time. Decode workers compute whenever they have a request."""
    longer = Bench(bench.case, bench.profile, LONG)
    found = longer.run(contender, seed, pace)
    for _ in range(3):
        busiest = max(share for n, share in found.utilisation.items() if n != "decode")
        if abs(busiest - wanted) < 0.03:
            break
        pace *= wanted / busiest
        found = longer.run(contender, seed, pace)
    bench.runs += longer.runs
    return pace, found
