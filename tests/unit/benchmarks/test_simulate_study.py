"""What is made of the runs: sustained load, tuning, fits, rows."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulate import report
from benchmarks.simulate.__main__ import main
from benchmarks.simulate.bench import Bench, best_fleet, best_of
from benchmarks.simulate.calibrate import fit
from benchmarks.simulate.cases import case, file_case, requests
from benchmarks.simulate.contenders import (
    OURS,
    PEERS,
    SPACES,
    Contender,
    Range,
    blind,
    borrowing,
    published,
    refusing,
    trials,
)
from benchmarks.simulate.hardware import H200, PROFILES, QWEN_7B, roofline
from benchmarks.simulate.memo import Memo
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.probes import Points
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.records import Objectives, Shape, Span
from benchmarks.simulate.study import LOADS, _best_refusing, entries
from benchmarks.simulate.study_results import (
    Case,
    CaseResult,
    ContenderResult,
    Curve,
    half_interval,
)
from services.master.placement.policies.factory import load_policy

ONE = Shape(1, 1, 1)
OUTCOME = Outcome(
    offered=10.0, goodput=9.5, attained=0.95, lifetimes=12.0, ttft_p50=1, ttft_p99=2, tpot_p50=3,
    tpot_p99=4, kv_hits=0.5, ec_hits=0.0, refused=0.0,
    utilisation={"prefill": 0.8, "decode": 0.9}, imbalance=1.5,
)  # fmt: skip


class Known(Bench):
    """Runs whose result is known: all is well up to a load that depends on fleet and options."""

    def run(self, contender: Contender, seed: int, pace: float, *, whole: bool = False) -> Outcome:
        self.runs += 1
        limit = 10.0 + float(contender.options.get("overlap_credit", 0.0)) + contender.shape.prefill
        attained = min(1.0, max(0.0, 1.0 - (pace / limit - 1.0)))
        return replace(OUTCOME, attained=attained, offered=pace)


def known(*shapes: Shape) -> Known:
    profile = calibrated()
    found = Case("c", shapes or (ONE,), 5.0, Span(), Objectives(profile), lambda seed: [])
    return Known(found, profile)


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


def test_a_run_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    made: list[int] = []

    def run(number: int) -> Outcome:
        made.append(number)
        return replace(OUTCOME, offered=float(number))

    for _ in range(2):
        memo = Memo(tmp_path)  # as another process has it
        assert [memo.of(("a", n), lambda n=n: run(n)).offered for n in (1, 2)] == [1.0, 2.0]
    assert made == [1, 2]
    assert [Memo().of(("a", 1), lambda: run(3)).offered, len(made)] == [3.0, 3]


def test_a_trace_that_changed_is_run_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(bench: Bench, *_: object, **__: object) -> Outcome:
        made.append(bench.case.digest)
        return OUTCOME

    monkeypatch.setattr(Bench, "_run", run)
    for digest in ("old", "new", "old"):
        found = replace(known().case, digest=digest)
        Bench(found, calibrated(), Memo(tmp_path)).run(Contender("cost", ONE), 1, 5.0)
    assert made == ["old", "new"]


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


def test_a_fleet_keeps_a_worker_for_every_stage() -> None:
    assert set(Shape(0, 2, 1).neighbours()) == {Shape(0, 1, 2)}
    assert set(Shape(1, 1, 2).neighbours()) == {Shape(2, 1, 1), Shape(1, 2, 1)}


def test_runs_in_which_no_worker_moves_depend_on_less_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = Memo(tmp_path)
    assert [memo.of("a", lambda n=n: replace(OUTCOME, offered=n), moves=bool(n)).offered
            for n in (0.0, 1.0)] == [0.0, 1.0]  # fmt: skip
    asked: list[bool] = []
    monkeypatch.setattr(Memo, "of", lambda self, key, run, *, moves: asked.append(moves))
    for elastic in (False, True):
        Bench(known().case, calibrated()).run(Contender("cost", ONE, elastic=elastic), 1, 5.0)
    assert asked == [False, True]
    before = Memo(tmp_path)._code[0]
    monkeypatch.setattr("benchmarks.simulate.memo._MOVES", ())
    assert Memo(tmp_path)._code[0] != before


def test_figures_of_a_run_without_answers_are_kept(tmp_path: Path) -> None:
    """No request was answered, so no percentile is known."""
    for _ in range(2):
        kept = Memo(tmp_path).of("a", lambda: replace(OUTCOME, ttft_p99=math.nan))
        assert math.isnan(kept.ttft_p99) and kept.offered == OUTCOME.offered


@pytest.mark.parametrize("policy", [OURS, *PEERS])
def test_every_contender_is_a_policy_of_the_master(policy: str) -> None:
    kinds = [one for kind in published(policy, [ONE]) for one in kind]
    for contender in [*kinds, *trials(policy, [ONE], 10, 1, tells=False, max_running=64)]:
        config = contender.config(1)
        assert load_policy(config, random.Random(1)).config is config
        assert all(getattr(config, name) == value for name, value in contender.options.items())


def drawn(policy: str, count: int, *, tells: bool = False) -> list[Contender]:
    return trials(policy, [ONE], count, 1, tells=tells, max_running=64)


def test_what_a_told_master_refuses_first_is_tuned_as_well() -> None:
    told = [one.options.get("refuse_first") for one in drawn(OURS, 20, tells=True)]
    assert set(told) == {None, "largest"}
    assert not any("refuse_first" in one.options for one in drawn(OURS, 20))


def test_workers_of_the_role_any_have_one_figure_of_how_busy_they_were() -> None:
    found = result(9.0, 10.0)
    line = replace(found.lines[0], contender=Contender(OURS, ONE, kind="any", elastic=True))
    found = replace(found, lines=(line, *found.lines[1:]))
    text = report.markdown(found, calibrated(), 1, [11], 40, 1.0)
    assert "| 90% of all |" in next(x for x in text.splitlines() if x.startswith("| cost (any)"))


def test_two_files_of_one_name_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / folder / "trace.csv" for folder in "ab"]
    assert main([word for path in paths for word in ("--file", str(path))]) == 2
    assert "--file: two traces of one name" in capsys.readouterr().err


@pytest.mark.parametrize("policy", SPACES)
def test_defaults_lie_within_what_is_searched(policy: str) -> None:
    config = Contender(policy, ONE).config(1)
    for name, values in SPACES[policy].items():
        default = getattr(config, name)
        if isinstance(values, Range):
            # 0 is no such limit; `kv_local_tokens` and the temperature are 0 as published.
            assert values.low <= default <= values.high or default == 0, name
        else:
            assert values.value != default, name


def test_half_of_what_may_be_drawn_stays_as_published() -> None:
    found = drawn("kv", 400)
    for name in (*SPACES["kv"], *blind(64)):
        assert sum(name in one.options for one in found) == pytest.approx(200, abs=40), name


def test_peers_refuse_by_what_they_know_and_ours_by_objectives() -> None:
    names = blind(64).keys()
    one = Contender("kv", ONE, {"overlap_credit": 2.0, "max_queue": 0}, "tuned")
    first, *others = refusing(one, 30, 1, 64)
    assert first == one and {x.kind for x in others} == {"tuned, refusing"}
    assert all(x.options["overlap_credit"] == 2.0 and names & x.options.keys() for x in others)
    assert any("max_queue" not in x.options for x in others), "what was tuned goes, too"
    told = drawn(OURS, 50, tells=True)
    assert not any(names & x.options.keys() for x in told)
    assert not any(x.borrows for x in (one, *told, *drawn("rtp", 9, tells=True)))


def test_a_peer_with_our_refusals_has_none_of_its_own() -> None:
    found = borrowing("kv", [ONE, Shape(1, 2, 1)], 20, 1, 64)
    assert all(x.borrows and not blind(64).keys() & x.options.keys() for x in found)
    assert [x.options for x in found[:4]] == [{}, {"refuse_first": "largest"}] * 2
    assert {x.shape for x in found} == {ONE, Shape(1, 2, 1)} and len(found) == 4 + 20


def test_peers_may_have_as_many_requests_as_the_workers_can_run() -> None:
    for most in (64, 256):
        found = trials("smg", [ONE], 300, 1, tells=False, max_running=most)
        counts = [x.options["busy_requests"] for x in found if "busy_requests" in x.options]
        assert most // 20 <= min(counts) < most / 10 and most / 2 < max(counts) <= most


def test_dynamos_encoders_are_chosen_by_their_caches_where_there_are_any() -> None:
    kinds = [kind[0].kind for kind in published("kv", [ONE])]
    assert kinds == ["", "conditional", "cached", "conditional, cached"]
    assert [kind[0].kind for kind in published("kv", [Shape(0, 1, 1)])] == ["", "conditional"]


def test_the_peer_under_overload_is_the_one_that_refuses_best() -> None:
    class Crowded(Known):
        def run_for(self, contender: Contender, seed: int, pace: float, seconds: float) -> Outcome:
            good = 5.0 if contender.policy == "rtp" and "max_queue" in contender.options else 1.0
            return replace(OUTCOME, goodput=good - contender.options.get("busy_kv_usage", 0.0))

    made = known()
    peers = [Contender("kv", ONE), Contender("rtp", ONE, {"rtp_slack": 0.2}, "tuned")]
    found = _best_refusing(Crowded(made.case, made.profile), peers, 1, 10.0, 40)
    assert found.name == "rtp (tuned, refusing)" and found.options["rtp_slack"] == 0.2
    assert "busy_kv_usage" not in found.options


def test_intervals_are_students() -> None:
    """Of 1, 2, 3: 4.303 * 1 / sqrt(3)."""
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(2.484, rel=0.01)
    assert half_interval([5.0]) == 0.0


def test_a_fit_finds_what_made_its_points() -> None:
    points = Points()
    for batch in (1.0, 4.0, 16.0):
        for context in (10.0, 1000.0):
            points.add((1.0, batch, batch * context), 3.0 + 0.5 * batch + 0.001 * batch * context)
    found = fit(points)
    assert found.coefficients == pytest.approx((3.0, 0.5, 0.001))
    assert found.max_error < 1e-9
    points.add((1.0, 1.0, 10.0), 7.02)
    assert fit(points).max_error > 0.3


def test_no_fitted_time_is_negative() -> None:
    points = Points()
    for tokens in (10.0, 100.0, 1000.0):
        points.add((1.0, tokens), tokens - 5.0)
    assert fit(points).coefficients == (0.0, pytest.approx(1.0, rel=0.5))


def test_the_calibration_in_the_repository_is_complete() -> None:
    profile = calibrated()
    assert profile.facts["date"] and profile.facts["hardware"]
    assert profile.facts["block_size"] == profile.block_size == Profile.block_size
    assert all(0 < found["max_error"] < 1 for found in profile.facts["fits"].values())
    timing = profile.timing
    assert min(timing.encode_patch_ms, timing.prefill_token_ms, timing.decode_base_ms) > 0


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


def test_a_roofline_follows_from_the_data_sheet() -> None:
    """7.6e9 weights: 15.2 GFLOP a token at half of 989 TFLOP/s, 15.2 GB a step at 70 % of 4.8 TB/s;
    28 layers with 4 heads of 128: 57,344 bytes of KV a token."""
    one, four = roofline("a", H200, QWEN_7B), roofline("b", H200, QWEN_7B, 4)
    assert one.timing.prefill_token_ms == pytest.approx(15.2e9 / (989e12 / 2) * 1e3)
    assert one.timing.decode_base_ms == pytest.approx(1.0 + 15.2e9 / (0.7 * 4.8e12) * 1e3)
    assert one.kv_bytes_per_token == 57344
    assert 1.8e6 < one.decode_blocks * one.block_size < 2.0e6
    assert four.timing.prefill_token_ms == pytest.approx(one.timing.prefill_token_ms / 4)
    assert four.decode_blocks > 4 * one.decode_blocks


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_serve(name: str) -> None:
    made = case("pictures", PROFILES[name](), 4)
    bench = Bench(replace(made, span=Span(2.0, 1.0, most_s=2.0)), PROFILES[name]())
    found = bench.run(Contender("cost", made.shapes[0]), 1, made.pace / 4)
    assert found.attained > 0.5 and found.utilisation["encode"] > 0.0


def result(ours: float, peer: float) -> CaseResult:
    made = known().case
    lines = [
        ContenderResult(Contender(OURS, ONE), (9.5, 9.5), OUTCOME),
        ContenderResult(Contender(OURS, ONE, kind="told", tells=True), (ours, ours), OUTCOME),
        ContenderResult(Contender("kv", ONE), (peer, peer), OUTCOME),
    ]
    good = {"cost": 13.5, "cost (told)": 14.0, "kv": 10.0}
    outcomes = {name: replace(OUTCOME, goodput=goodput) for name, goodput in good.items()}
    curves = [Curve(x.contender, [[outcomes[x.contender.name]] for _ in LOADS]) for x in lines]
    return CaseResult(replace(made, name="pictures"), tuple(lines), peer, curves, 3)


@pytest.mark.parametrize(("ours", "holds"), [(12.0, True), (11.0, False)])
def test_rows_hold_against_the_best_peer(ours: float, holds: bool) -> None:
    goodput, untold, lifetimes, overload = report.rows([result(ours, 10.0)])
    assert (lifetimes.ours, lifetimes.holds) == (12.0, True)
    assert (untold.ours, untold.bar, untold.holds) == (pytest.approx(9.5), "ratio >= 1", False)
    assert (goodput.ours, goodput.peer) == pytest.approx((ours, 10.0))
    assert (goodput.bar, goodput.holds) == ("ratio >= 1.15", holds)
    assert (overload.ours, overload.peer, overload.holds) == (14.0, 10.0, True)


def test_a_ratio_that_is_the_same_on_every_seed_is_certain() -> None:
    """However much seeds differ."""
    lines = [
        ContenderResult(Contender(OURS, ONE, kind="told", tells=True), (8.0, 16.0, 2.0), OUTCOME),
        ContenderResult(Contender("kv", ONE), (4.0, 8.0, 1.0), OUTCOME),
    ]
    found = replace(result(9.0, 10.0), lines=tuple(lines))
    assert report.pair_interval(found, told=True) == pytest.approx((2.0, 2.0))
    doubtful = replace(lines[0], sustained=(8.0, 24.0, 2.0))
    low, high = report.pair_interval(replace(found, lines=(doubtful, lines[1])), told=True)
    assert low < 2.0 < found.ratio(told=True) * 1.1 < high


def test_a_lost_trace_stays_in_the_table() -> None:
    text = report.markdown(result(9.0, 10.0), calibrated(), 1, [11, 12], 40, 1.0)
    rows: list[Any] = [x for x in text.splitlines() if x.startswith("| sustained goodput, pic")]
    assert len(rows) == 2 and all("MISSED" in row for row in rows)
    assert "| – / 80% / 90% |" in text
