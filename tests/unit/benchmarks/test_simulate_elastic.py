"""A simulated day with workers that change their role: none of its requests is lost."""

from dataclasses import replace

import pytest

from benchmarks.simulate.elastic import ElasticResult, Plan, day, rows, run, shapes, table
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.records import Shape, Span
from benchmarks.simulate.simulation import Simulation
from services.master.config import MasterConfig

LENGTH_S = 150.0


@pytest.fixture(scope="module")
def plan() -> Plan:
    profile = replace(calibrated(), prefill_blocks=Profile.decode_blocks, max_running=16)
    return Plan(profile, 4, 2.5, LENGTH_S, 7)


def test_a_day_turns_from_text_to_pictures_and_back(plan: Plan) -> None:
    sessions = iter(day(128, 3, 900.0))
    asked = [next(sessions).turns[0] for _ in range(900)]
    thirds = [asked[:150], asked[375:525], asked[750:900]]
    shares = [sum(bool(r.items) for r in part) / 150 for part in thirds]
    assert shares[0] < 0.2 and shares[1] > 0.8 and shares[2] < 0.25
    text = [r.output for r in asked if not r.items]
    assert sum(text) / len(text) > 300


def test_workers_move_and_every_request_ends(plan: Plan) -> None:
    """Engines and the master's books are as if no worker had ever moved."""
    config = MasterConfig(seed=1, elastic_window=4.0, elastic_dwell=5.0, elastic_gap=2.0)
    fleet = Simulation(plan.profile, Shape(1, 1, 2), config, plan.aims(), 7, elastic=True)
    fleet.run(plan.sessions(), plan.pace, Span(5.0, LENGTH_S, 0.0, LENGTH_S))
    master = fleet.service.master
    assert sum(master.registry.roles.moved.values()) >= 2
    fleet.arrivals._sessions = iter(())  # no further requests come
    fleet.clock.run(fleet.clock.now + 120.0)
    assert all(record.over and not record.refused for record in fleet.records)
    for worker in fleet.workers:
        assert worker.engine.check_integrity() == []
        instance = master.registry.instances[worker.name]
        assert worker.role == instance.info.role
        assert float(instance.pool.requests[instance.row]) == 0.0
    assert len(master.ledger) == 0 and not fleet._prefilling


def test_the_same_seed_gives_the_same_day(plan: Plan) -> None:
    short = replace(plan, length=20.0)
    first, again = (run(short, "any", Shape(1, 1, 2), elastic=True, moves=True) for _ in range(2))
    assert first == again
    assert "| any | 1E1P2D |" in table(short, [first])


def test_splits_have_a_worker_for_each_stage_and_the_bar_is_the_best() -> None:
    assert len(shapes(8)) == 21 and {s.total for s in shapes(8)} == {8}
    assert min(min(s.encode, s.prefill, s.decode) for s in shapes(8)) == 1


def test_a_fleet_that_is_worse_than_a_fixed_split_misses(plan: Plan) -> None:
    short = replace(plan, length=20.0, pace=1.0)
    one = run(short, "any", Shape(1, 1, 2), elastic=False, moves=False)
    worse = ElasticResult("any", one.shape, replace(one.outcome, goodput=one.outcome.goodput / 2))
    assert [row.holds for row in rows([worse, one, one, one])][:2] == [False, False]
    assert [row.holds for row in rows([one, one, one, one])][:2] == [True, True]
