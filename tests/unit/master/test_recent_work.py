"""Work that was placed lately makes a worker dearer than those that had less."""

import numpy as np
import pytest

from protocol.registry import Load
from services.master.fleet.pool import Charge
from services.master.fleet.recent_work import RecentWork
from services.master.placement.costs import COMBINED, PREFILL, Choice, StageCosts
from tests.unit.master.test_policies import costs_of, policy

WINDOW_MS = 30_000.0


def recent(rows: int = 4) -> RecentWork:
    found = RecentWork()
    found.grow(rows)
    return found


def test_without_work_all_rows_are_alike() -> None:
    assert RecentWork().relative(0).tolist() == []
    assert recent().relative(3).tolist() == [1.0] * 4


def test_who_had_more_than_the_average_counts_for_more() -> None:
    """0.9 of the time on one of three workers, whose average is 0.3; both plus a tenth."""
    found = recent(3)
    found.add(1, 0.9 * WINDOW_MS, 5.0)
    assert found.relative(3) == pytest.approx([0.1 / 0.4, 1.0 / 0.4, 0.1 / 0.4])
    assert found.relative(3).mean() == pytest.approx(1.0)
    assert [found.relative_of(row, 3) for row in range(3)] == pytest.approx(found.relative(3))


def test_a_single_request_on_an_idle_fleet_tells_next_to_nothing() -> None:
    found = recent(200)
    found.add(7, 100.0, 0.0)
    assert found.relative(200).max() < 1.05


def test_work_of_long_ago_counts_for_little() -> None:
    found = recent(2)
    found.add(0, WINDOW_MS, 0.0)
    before = found.relative_of(0, 2)
    found.add(1, WINDOW_MS * np.exp(-1.0), WINDOW_MS)
    assert found.relative(2) == pytest.approx([1.0, 1.0])
    found.add(1, 0.0, 20 * WINDOW_MS)
    assert found.relative(2) == pytest.approx([1.0, 1.0], abs=1e-6) and before > 1.5


def test_a_clock_that_goes_back_changes_nothing_of_before() -> None:
    found = recent(2)
    found.add(0, 300.0, 1_000.0)
    found.add(1, 300.0, 900.0)
    assert found.relative(2) == pytest.approx([1.0, 1.0])


def test_a_new_worker_does_not_answer_for_one_that_has_left() -> None:
    found = recent(2)
    found.add(0, WINDOW_MS, 0.0)
    found.forget(0)
    assert found.relative(2).tolist() == [1.0, 1.0]
    found.grow(1)
    assert len(found.relative(3)) == 3


def placed(costs: StageCosts, row: int, work_ms: float) -> None:
    """Work that was placed on a row and is done by now."""
    charge = Charge(costs.pool, row, 0.0, work_ms)
    costs.pool.charge(charge, 0.0)
    costs.pool.release(charge, 0.0, done=True)


def test_of_idle_workers_the_one_with_less_work_lately_is_chosen() -> None:
    costs, found = costs_of([Load()] * 3), policy("cost")
    for row, work_ms in ((0, 9_000.0), (1, 3_000.0), (2, 6_000.0)):
        placed(costs, row, work_ms)
    assert costs.queue_ms[:3].tolist() == [0.0] * 3
    assert {found.pick(costs) for _ in range(20)} == {1}


def test_a_history_is_followed_to_an_idle_worker_that_had_more_to_do() -> None:
    """What is computed there is little, so that it costs little there, too."""
    costs, found = costs_of([Load()] * 3, [140.0, 0.0, 0.0]), policy("cost")
    placed(costs, 0, WINDOW_MS)
    assert found.pick(costs) == 0


@pytest.mark.parametrize("stage", [PREFILL, COMBINED])
def test_a_price_is_the_score_of_its_row(stage: str) -> None:
    costs, found = costs_of([Load()] * 3, [16.0], stage), policy("cost")
    placed(costs, 1, 5_000.0)
    scores = found.scores(costs)
    for row in range(3):
        at = object()
        ttft = float(costs.ttft_ms[row])
        choice = Choice(costs, row, at, 0, ttft)  # type: ignore[arg-type]
        assert found.price(choice) == pytest.approx(float(scores[row]))


def test_work_is_counted_where_it_is_placed_and_a_row_is_used_again() -> None:
    costs = costs_of([Load()] * 2)
    placed(costs, 0, 5_000.0)
    assert costs.pool.recent.relative_of(0, 2) > 1.2
    costs.pool.remove(0)
    assert costs.pool.recent.relative_of(0, 2) == 1.0
