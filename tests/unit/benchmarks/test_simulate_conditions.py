"""Simulated fleets of many workers, and masters whose view lags behind."""

from dataclasses import replace

import pytest

from benchmarks.simulate import cases, large, stale
from benchmarks.simulate.bench import Bench
from benchmarks.simulate.contenders import Contender
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.records import Shape, Span
from benchmarks.simulate.study_results import Case
from tests.support.known_loads import OUTCOME

ONE = Shape(0, 1, 1)


def test_a_large_fleet_has_the_proportions_of_a_small_one() -> None:
    assert large.scaled(Shape(3, 1, 6), 1250) == Shape(375, 125, 750)
    assert large.scaled(Shape(0, 2, 8), 1250) == Shape(0, 250, 1000)
    assert large.scaled(Shape(0, 1, 9), 4) == Shape(0, 1, 3)


def test_a_large_fleet_that_loses_to_a_peer_says_so() -> None:
    def line(policy: str, attained: float, ttft: float, *, tells: bool = False) -> large.FleetRun:
        outcome = replace(OUTCOME, attained=attained, ttft_p99=ttft)
        return large.FleetRun(Contender(policy, ONE, tells=tells), outcome, 1.0)

    lines = [line("cost", 0.90, 800), line("kv", 0.97, 600), line("cost", 0.96, 700, tells=True)]
    share, untold, told = large.rows("chat", lines)
    assert (share.ours, share.peer, share.holds) == (0.96, 0.97, False)
    assert (untold.ours, told.ours, told.peer) == (800, 700, 600)
    assert "| kv | 97.0% | 1 / 600 |" in large.table(lines)


def test_a_lag_at_which_a_peer_is_better_does_not_hold() -> None:
    loads = (5.0,) * len(stale.LAGS)
    lines = [
        stale.LaggedLoads(Contender("cost", ONE, tells=True, kind="told"), loads),
        stale.LaggedLoads(Contender("cost", ONE), (9.0,) * len(stale.LAGS)),
        stale.LaggedLoads(Contender("kv", ONE), (4.0, 6.0, *loads[2:])),
    ]
    assert [row.holds for row in stale.rows("chat", lines)] == [True, False, True, True, True, True]
    assert "| kv | 0E1P1D | 4.00 | 6.00 |" in stale.table("chat", lines)


def test_lags_reach_the_simulated_master(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    def sustained(bench: Bench, contender: Contender, seed: int, start: float) -> float:
        seen.append((bench.profile.heartbeat_s, bench.profile.event_s))
        return 1.0 + len(seen)

    def case(name: str, profile: Profile, workers: int) -> Case:
        return Case(name, (ONE,), 5.0, Span(), stale_aims, lambda seed: [])

    stale_aims = cases.case("chat", calibrated(), 2).aims
    monkeypatch.setattr(Bench, "sustained", sustained)
    monkeypatch.setattr(stale, "case", case)
    lines = stale.study("chat", calibrated(), 2, (11,))
    assert len(lines) == 7 and all(line.goodput[0] > 1.0 for line in lines)
    assert set(seen) == {*stale.LAGS, (1.0, 0.005)}
