"""The load that a policy sustains, the best options, and who is chosen for overload."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulate.bench import Bench, best_of
from benchmarks.simulate.cases import case, file_case, requests
from benchmarks.simulate.contenders import (
    OURS,
    Contender,
    published,
    trials,
)
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.profile import calibrated
from benchmarks.simulate.records import Shape, Span
from benchmarks.simulate.study import _best_crowded
from tests.support.known_loads import ONE, OUTCOME, Known, known


@pytest.mark.parametrize("start", [3.0, 12.0, 40.0])
def test_the_sustained_load_is_where_nine_tenths_are_well(start: float) -> None:
    """1 - (x / 11 - 1) = 0.9 at x = 12.1."""
    found = known().sustained(Contender("cost", ONE), 1, start)
    assert found == pytest.approx(12.1, rel=0.05)


def test_the_best_fleet_and_the_best_options_are_found() -> None:
    shapes = [Shape(0, prefill, 4) for prefill in (1, 3, 2)]
    bench = known(*shapes)
    best, load = best_of(bench, published("rtp", shapes)[0], 1, 5.0)
    assert best.shape == shapes[1] and load == pytest.approx(14.3, rel=0.05)
    drawn = trials("kv", shapes[:1], 20, 1, tells=False, max_running=64)
    found, _ = best_of(bench, drawn, 1, 5.0)
    most = max(one.options.get("overlap_credit", 0.0) for one in drawn)
    assert found.options["overlap_credit"] == pytest.approx(most, rel=0.1)
    assert bench.runs < 200


def test_a_fleet_keeps_a_worker_for_every_stage() -> None:
    assert set(Shape(0, 2, 1).neighbours()) == {Shape(0, 1, 2)}
    assert set(Shape(1, 1, 2).neighbours()) == {Shape(2, 1, 1), Shape(1, 2, 1)}


def test_the_peer_under_overload_is_the_one_that_refuses_best() -> None:
    class Crowded(Known):
        def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
            good = 5.0 if contender.policy == "rtp" and "max_queue" in contender.options else 1.0
            return replace(OUTCOME, goodput=good - contender.options.get("busy_kv_usage", 0.0))

    made = known()
    peers = [Contender("kv", ONE), Contender("rtp", ONE, {"rtp_slack": 0.2}, "tuned")]
    found = _best_crowded(Crowded(made.case, made.profile), peers, 1, 10.0, 40)
    assert found.name == "rtp (tuned, refusing)" and found.options["rtp_slack"] == 0.2
    assert "busy_kv_usage" not in found.options


@pytest.mark.parametrize("elastic", [False, True])
def test_ours_is_drawn_for_overload_too(elastic: bool) -> None:
    class Crowded(Known):
        def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
            return replace(OUTCOME, goodput=float("refuse_first" in contender.options))

    made = known()
    one = Contender(OURS, ONE, kind="told", tells=True, elastic=elastic)
    found = _best_crowded(Crowded(made.case, made.profile), [one], 1, 10.0, 40)
    assert found.group == one.group and found.shape == ONE
    assert found.kind == ("told, tuned, any" if elastic else "told, tuned")


def test_fleets_have_all_the_workers_and_every_stage_some() -> None:
    for name in ("pictures", "chat"):
        made = case(name, calibrated(), 16)
        assert len(made.shapes) > 1
        for shape in made.shapes:
            assert shape.total == 16
            assert shape.prefill > 0 and shape.decode > 0 and (shape.encode > 0) == (name != "chat")


def test_a_public_trace_is_measured_for_longer_and_known_by_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.csv"
    found = []
    for tokens in (100, 200):
        lines = [f"2023-11-16 18:17:{second:02},{tokens},10" for second in range(60)]
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
        found.append(file_case(path, calibrated(), 4))
    assert found[0].digest != found[1].digest != ""
    spans: list[Span] = []

    def run(bench: Bench, contender: Contender, seed: int, pace: float, span: Span) -> Outcome:
        spans.append(span)
        return OUTCOME

    monkeypatch.setattr(Bench, "_run", run)
    for made in (found[0], case("chat", calibrated(), 4)):
        Bench(made, calibrated()).run(Contender("cost", ONE), 1, 20.0)
    Bench(found[0], calibrated()).run_for(Contender("cost", ONE), 1, 20.0, 120.0)
    assert [span.least_s for span in spans] == [50.0, 20.0, 120.0] and spans[2].most_s == 120.0


def test_policies_see_the_same_sessions() -> None:
    made = case("agents", calibrated(), 4).make(3)
    assert requests(made, 30) == requests(made, 30)
    assert len({request.name for request in requests(made, 30)}) == 30
