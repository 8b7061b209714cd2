"""The cheapest fleet that keeps the objectives: grown until it does, shrunk as far as it can."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.simulate.bench import Bench
from benchmarks.simulate.cases import requests, stage_seconds
from benchmarks.simulate.contenders import Contender
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.records import Shape

ROLES = ("encode", "prefill", "decode")
_FULL = 0.75  # use of a stage's workers with which growing begins: queues are short there
_SAMPLE = 400
_BATCH = 16  # requests in a decode step with which growing begins
_HELPS = 0.02  # of the requests more: less is noise


class NoFleet(Exception):
    """No fleet of so many workers keeps the objectives; says the best and its share."""


@dataclass(frozen=True)
class Trial:
    """A fleet at one load: outcomes by seed. `elastic`: its workers are of the role any, and begin
    in the roles of `shape`."""

    shape: Shape
    rate: float
    runs: tuple[Outcome, ...]
    elastic: bool = False

    @property
    def name(self) -> str:
        return f"{self.shape.total} any" if self.elastic else str(self.shape)

    @property
    def attained(self) -> float:
        """Mean share of requests within both objectives."""
        return float(np.mean([run.attained for run in self.runs]))

    def busy(self, role: str) -> float:
        return float(np.mean([run.utilisation.get(role, 0.0) for run in self.runs]))


def within(shape: Shape, most: int) -> Shape:
    """The shape, or one of exactly `most` workers in about the same proportions, one at least of
    each role that it has. `NoFleet` if these are more than `most`."""
    counts = {role: getattr(shape, role) for role in ROLES}
    if sum(1 for count in counts.values() if count) > most:
        raise NoFleet(f"{shape} cannot be brought down to {most} workers (--max-workers)")
    scale = min(1.0, most / shape.total)
    shares = {role: count * scale for role, count in counts.items()}
    fewer = {role: max(1, int(share)) if share else 0 for role, share in shares.items()}
    while sum(fewer.values()) > most:
        largest = max(fewer, key=lambda role: fewer[role])
        fewer[largest] -= 1
    while sum(fewer.values()) < min(most, shape.total):  # rounding down has taken too many
        shortest = max(fewer, key=lambda role: shares[role] - fewer[role])
        fewer[shortest] += 1
    return replace(shape, **fewer)


@dataclass
class Planner:
    """Searches fleets for `rate` requests/s of one workload."""

    bench: Bench  # simulates them
    rate: float
    good: float  # share of requests that must keep both objectives
    costs: Mapping[str, float]  # of one worker, by role; "any" among them
    seeds: Sequence[int]  # of the runs that a fleet is judged by
    most: int  # workers at most
    say: Callable[[Trial], None]  # is told of every fleet tried
    policy: str = "cost"  # of the master
    _tried: dict[tuple[Shape, bool, float], Trial] = field(default_factory=dict)

    def cost(self, shape: Shape) -> float:
        """Of workers of one role each."""
        return float(sum(self.costs[role] * getattr(shape, role) for role in ROLES))

    def price(self, trial: Trial) -> float:
        """Of the trial's fleet, in the unit of `costs`."""
        return self.costs["any"] * trial.shape.total if trial.elastic else self.cost(trial.shape)

    def trial(self, shape: Shape, rate: float | None = None, *, elastic: bool = False) -> Trial:
        """Simulates a fleet, once. One that fails clearly is left before the end of a run."""
        load, whole = rate or self.rate, rate is not None
        key, contender = (shape, elastic, load), Contender(self.policy, shape, elastic=elastic)
        if key not in self._tried:
            runs: list[Outcome] = []
            for seed in self.seeds:
                runs.append(self.bench.run(contender, seed, load, whole=whole))
                if runs[0].attained < self.good - 0.1:
                    break
            self._tried[key] = Trial(shape, load, tuple(runs), elastic)
            self.say(self._tried[key])
        return self._tried[key]

    def keeps(self, trial: Trial) -> bool:
        """Whether enough requests were within both objectives."""
        return trial.attained >= self.good

    def cheapest(self) -> Trial:
        """A fleet of which no worker can be spared, nor exchanged for a cheaper one. `NoFleet`."""
        best = self._grown(self._first())
        for role in sorted(ROLES, key=best.busy):
            best = self._fewest(best, role)
        while True:
            better = next((t for t in map(self.trial, self._cheaper(best.shape)) if self.keeps(t)),
                          None)  # fmt: skip
            if better is None:
                return best
            best = better

    def of_any_role(self, split: Trial) -> Trial | None:
        """As few workers of the role any as will do, at most as many as `split` has, beginning in
        its proportions. None if so many do not suffice: one role each is better then."""
        found = None
        for count in range(split.shape.total, 1, -1):
            try:
                trial = self.trial(within(split.shape, count), elastic=True)
            except NoFleet:  # a worker for each stage is the least
                break
            if not self.keeps(trial):
                break
            found = trial
        return found

    def _fewest(self, best: Trial, role: str) -> Trial:
        """As few of a role as will do beside the others, by halving."""
        low, high = 0, getattr(best.shape, role)
        while high - low > 1:
            middle = (low + high) // 2
            trial = self.trial(replace(best.shape, **{role: middle}))
            if self.keeps(trial):
                best, high = trial, middle
            else:
                low = middle
        return best

    def _first(self) -> Shape:
        """As many workers as the work takes if caches save half of it, at most `most`."""
        sample = requests(self.bench.case.make(self.seeds[0]), _SAMPLE)
        need = stage_seconds(self.bench.profile, sample, 0.5, 0.5, _BATCH)
        counts = [math.ceil(self.rate * seconds / _FULL) for seconds in need]
        return within(Shape(counts[0], max(1, counts[1]), max(1, counts[2])), self.most)

    def _grown(self, shape: Shape) -> Trial:
        """Add workers until it suffices: of the role that helps most, or of all where none helps
        alone, as where two stages are equally short."""
        found = self.trial(shape)
        while not self.keeps(found):
            if found.shape.total >= self.most:
                raise NoFleet(
                    f"{found.shape}, {self.most} workers, keeps the objectives of "
                    f"{found.attained:.0%} of requests at {self.rate:g} requests/s"
                )
            more = max(1, found.shape.total // 10) if found.attained < 0.5 else 1
            tried = [self.trial(s) for s in self._larger(found.shape, more)]
            best = max(tried, key=self._worth)
            if best.attained < found.attained + _HELPS and not self.keeps(best):
                best = self.trial(self._all_larger(found.shape))
            found = best
        return found

    def _all_larger(self, shape: Shape) -> Shape:
        for role in ROLES:
            count = getattr(shape, role)
            if count and shape.total < self.most:
                shape = replace(shape, **{role: count + 1})
        return shape

    def _worth(self, trial: Trial) -> float:
        """Of those that keep the objectives the cheapest, else that which comes closest."""
        if self.keeps(trial):
            return 1.0 + 1.0 / self.cost(trial.shape)
        return trial.attained

    def _larger(self, shape: Shape, more: int) -> Iterator[Shape]:
        for role in ROLES:
            count = getattr(shape, role)
            room = min(more, self.most - shape.total)
            if count and room > 0:
                yield replace(shape, **{role: count + room})

    def _cheaper(self, shape: Shape) -> list[Shape]:
        """One worker less of a role, or one role's exchanged for another's; the cheapest first."""
        found = []
        for role in ROLES:
            count = getattr(shape, role)
            if count < 2:
                continue
            less = replace(shape, **{role: count - 1})
            found.append(less)
            found += [s for s in self._larger(less, 1) if s != shape]
        cost = self.cost(shape)
        return sorted((s for s in found if self.cost(s) < cost), key=self.cost)

    def around(self, best: Trial) -> list[Trial]:
        """The fleet, and those with one worker more or less of a role."""
        shape = best.shape
        near = [shape, *self._larger(shape, 1)]
        near += [
            replace(shape, **{role: getattr(shape, role) - 1})
            for role in ROLES
            if getattr(shape, role) > 1
        ]
        if best.elastic:  # which role a worker more begins in makes no difference
            near = list({one.total: one for one in near}.values())
        return [self.trial(s, elastic=best.elastic) for s in near if s.total <= self.most]

    def curve(self, best: Trial, factors: Sequence[float]) -> list[Trial]:
        """The fleet at several times the rate."""
        return [
            self.trial(best.shape, self.rate * factor, elastic=best.elastic) for factor in factors
        ]
