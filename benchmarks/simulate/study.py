"""Every policy on a workload: tuned on one seed or as chosen before, measured on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.simulate.bench import Bench, best_fleet
from benchmarks.simulate.contenders import (
    OURS,
    Contender,
    borrowing,
    refusing,
    trials,
)
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.study_results import (
    Case,
    CaseResult,
    ContenderResult,
    Curve,
    best_result,
    geometric_mean,
    is_peer,
)
from benchmarks.simulate.tuning import Line, tuned

LOADS = (0.8, 1.0, 1.2, 1.5, 2.0)  # of the best peer's sustained goodput
_OVERLOAD_S = 120.0  # measured of each run beyond capacity
_TUNING_S = 60.0  # and of those by which it is chosen what suits peers there
Loads = tuple[float, ...]


def study(
    case: Case, profile: Profile, peers: Sequence[str], tuning: int, seeds: Sequence[int],
    draws: int, say: Callable[[str], None], memo: Memo | None = None,
    chosen: Sequence[Line] = (),
) -> CaseResult:  # fmt: skip
    """Ours beside `peers`, measured on `seeds`: tuned on one seed by `draws` trials each, or as
    `chosen` before."""
    bench = Bench(case, profile, memo or Memo())
    lines: list[tuple[Contender, Loads]] = []

    def measure(one: Contender, load: float) -> None:
        lines.append((one, _loads(bench, one, seeds, load)))
        say(_line(case, *lines[-1]))

    for one, load in chosen or tuned(bench, (OURS, *peers), tuning, draws):
        measure(one, load)
    if not chosen:
        measure(*_borrowing(bench, lines, tuning, draws))
    peer = max((x for x in lines if is_peer(x[0])), key=_mean)
    pace = _mean(peer)
    results = tuple(_result(bench, one, seeds, loads, pace) for one, loads in lines)
    mine = [x for x in results if x.contender.policy == OURS]
    told = [x for x in mine if x.contender.tells]
    crowded = [
        _best_crowded(bench, ones, tuning, pace, draws)
        for ones in ([x.contender for x in told], [x for x, _ in lines if is_peer(x)])
    ]
    for one in crowded:
        say(f"{case.name:12} under overload {one.name}: {one.chosen()}")
    untold_best = best_result(x for x in mine if not x.contender.tells).contender
    shown = [untold_best, best_result(told).contender, crowded[0], peer[0], crowded[1]]
    curves = _curves(bench, shown, seeds, pace)
    return CaseResult(case, results, pace, curves, bench.runs)


def _borrowing(
    bench: Bench, lines: Sequence[tuple[Contender, Loads]], tuning: int, draws: int
) -> Line:
    """The best of the peers that know no objectives, before a master that refuses as ours does."""
    peers = [line for line in lines if is_peer(line[0])]
    untold, _ = max((line for line in peers if not line[0].tells), key=_mean)
    shapes = list(dict.fromkeys((untold.shape, *bench.case.shapes)))
    lent = borrowing(untold.policy, shapes, draws, tuning)
    return best_fleet(bench, lent, tuning, max(map(_mean, peers)))


def _mean(line: tuple[Contender, Loads]) -> float:
    return geometric_mean(line[1])


def _line(case: Case, one: Contender, loads: Loads) -> str:
    return f"{case.name:12} {one.name:20} {one.shape} {np.mean(loads):8.2f} /s"


def _loads(bench: Bench, contender: Contender, seeds: Sequence[int], start: float) -> Loads:
    loads: list[float] = []
    for seed in seeds:
        start = bench.sustained(contender, seed, start)
        loads.append(start)
    return tuple(loads)


def _result(
    bench: Bench, one: Contender, seeds: Sequence[int], loads: Loads, pace: float
) -> ContenderResult:
    arrived = tuple(
        bench.run(one, seed, load).offered for seed, load in zip(seeds, loads, strict=True)
    )
    return ContenderResult(one, loads, arrived, bench.run(one, seeds[0], pace, whole=True))


def _best_crowded(
    bench: Bench, lines: Sequence[Contender], seed: int, pace: float, draws: int
) -> Contender:
    """The one with the most goodput at the highest of `LOADS`, each with what suits it there."""
    tried = [choice for one in lines for choice in _crowded(one, draws // 2, seed, bench.profile)]
    return max(tried, key=lambda one: bench.run_for(one, seed, LOADS[-1] * pace, _TUNING_S).goodput)


def _crowded(one: Contender, count: int, seed: int, profile: Profile) -> list[Contender]:
    """As it is, and with `count` draws of what it refuses by; ours, told the objectives, of all its
    options."""
    if is_peer(one):
        return refusing(one, count, seed, profile.max_running)
    drawn = trials(
        one.policy, [one.shape], count, seed, tells=True, max_running=profile.max_running
    )
    return [one, *(x.of_role_any() if one.elastic else x for x in drawn)]


def _curves(
    bench: Bench, shown: Sequence[Contender], seeds: Sequence[int], pace: float
) -> list[Curve]:
    """Attainment over offered load. Beyond the common load runs are as long for all: queues grow,
    and who refuses less would be judged by a longer run."""

    def run(one: Contender, seed: int, factor: float) -> Outcome:
        if factor > 1.0:
            return bench.run_for(one, seed, factor * pace, _OVERLOAD_S)
        return bench.run(one, seed, factor * pace, whole=True)

    return [
        Curve(one, [[run(one, seed, factor) for seed in seeds] for factor in LOADS])
        for place, one in enumerate(shown)
        if one not in shown[:place]
    ]
