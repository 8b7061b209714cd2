"""What suits each policy: fleets, options drawn at random, and what suits others."""

from dataclasses import replace

import pytest

from benchmarks.simulate.bench import best_fleet
from benchmarks.simulate.contenders import OURS, Contender
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.records import Shape
from benchmarks.simulate.tuning import entries, exchanged
from tests.support.known_loads import ONE, OUTCOME, Known, known


def test_trials_are_on_fleets_that_suit_workers_of_one_role() -> None:
    """Those of the role any do best on another, which moves its roles anyhow."""
    tried: dict[str, set[Shape]] = {}

    class Split(Known):
        def run(
            self, contender: Contender, seed: int, pace: float, *, whole: bool = False
        ) -> Outcome:
            tried.setdefault(contender.kind, set()).add(contender.shape)
            if contender.elastic:
                swapped = Shape(0, 3 - contender.shape.prefill, contender.shape.decode)
                contender = replace(contender, shape=swapped)
            return super().run(contender, seed, pace, whole=whole)

    shapes = Shape(0, 1, 2), Shape(0, 2, 1)
    made = known(*shapes)
    found = entries(Split(made.case, made.profile), OURS, 1, 5.0, 12)
    assert next(one.shape for one, _ in found if one.kind == "any") == shapes[0]
    assert tried["any"] == {*shapes} and tried["tuned"] == tried["told, tuned"] == {shapes[1]}


def test_a_fleet_that_was_not_guessed_is_found() -> None:
    """More prefill is better there, as far as it goes."""
    guessed = [Contender("kv", shape) for shape in (Shape(0, 2, 5), Shape(0, 1, 6))]
    best, load = best_fleet(known(), guessed, 1, 5.0)
    assert best.shape == Shape(0, 6, 1) and load == pytest.approx(17.6, rel=0.05)
    moves = [replace(one, elastic=True) for one in guessed]
    assert best_fleet(known(), moves, 1, 5.0)[0].shape == Shape(0, 2, 5)
    tuned = entries(known(Shape(0, 2, 5)), "rtp", 1, 5.0, 4)
    assert {one.shape for one, _ in tuned} == {Shape(0, 6, 1)}


def test_of_each_group_the_line_that_tuning_found_best_is_left() -> None:
    found = entries(known(), "kv", 1, 5.0, 30)
    ((best, load),) = found
    assert best.kind == "tuned" and load > 10.0 + 1.0 + 2.0
    groups = [one.group for one, _ in entries(known(), OURS, 1, 5.0, 5)]
    assert len(groups) == len(set(groups)) == 4, "told or not, of the role any or not"
    assert [(x.tells, x.only_ttft) for x, _ in entries(known(), "rtp", 1, 5.0, 5)] == [
        (False, False), (True, True),
    ]  # fmt: skip


class Limited(Known):
    """Eight requests at a worker are the limit that does best, two prefill workers the fleet."""

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        limit = 12.0 - abs(contender.options.get("busy_requests", 64) - 8) / 16
        attained = min(1.0, max(0.0, 1.9 - pace / (limit - abs(contender.shape.prefill - 2))))
        return replace(OUTCOME, attained=attained, offered=pace)


def test_what_suits_one_policy_is_tried_with_all() -> None:
    made = known()
    two = Shape(0, 2, 5)
    found = exchanged(
        Limited(made.case, made.profile),
        [
            (Contender("smg", two, {"balance_abs": 3.0, "busy_requests": 9}, "tuned"), 11.9),
            (Contender("kv", Shape(0, 1, 6), {"temperature": 0.5}, "conditional"), 7.0),
            (Contender("rtp", two, {}, "told", tells=True, only_ttft=True), 8.0),
            (Contender(OURS, two, {}, "any", elastic=True), 8.0),
            (Contender(OURS, two, {}, "told, largest", tells=True), 7.0),
        ],
        1,
    )
    assert [one.kind for one, _ in found] == [
        "tuned", "tuned", "told, tuned", "tuned, any", "told, largest",
    ]  # fmt: skip
    assert [one.options.get("busy_requests") for one, _ in found] == [9, 9, 9, 9, None]
    assert {one.shape for one, _ in found} == {two} and found[1][1] == pytest.approx(11.9, rel=0.05)
    assert found[0][1] == 11.9 and found[4][1] == 7.0, "as they were"
    assert found[1][0].options["temperature"] == 0.5 and found[3][0].elastic
    assert not exchanged(made, [(Contender("kv", ONE), 5.0)], 1)[0][0].options
