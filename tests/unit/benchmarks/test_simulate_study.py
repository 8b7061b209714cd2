"""What is made of the runs: sustained load, tuning, fits, rows; and Mooncake's format."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.simulate import mooncake, report
from benchmarks.simulate.calibrate import fit
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import GRIDS, OURS, PEERS, Contender, grid
from benchmarks.simulate.metrics import Outcome
from benchmarks.simulate.probes import Points
from benchmarks.simulate.profile import Profile, calibrated, gpu_like
from benchmarks.simulate.records import Shape
from benchmarks.simulate.study import Bench, Case, Line, Result, tuned
from services.master.placement.policies.factory import load_policy

SAMPLE = """\
{"timestamp": 5000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 2]}
{"timestamp": 7500, "input_length": 1536, "output_length": 1, "hash_ids": [0, 1, 3]}

{"timestamp": 6000, "input_length": 513, "output_length": 9, "hash_ids": [4, 5]}
"""
OUTCOME = Outcome(
    0.95,
    1.0,
    1,
    2,
    3,
    4,
    0.5,
    0.0,
    0,
    {"prefill": 0.8},
    {"prefill": 1.5, "decode": 1},
    {"prefill": 1.2, "decode": 1},
)


@pytest.mark.parametrize("block_size", [64, 512])
def test_mooncakes_format(block_size: int) -> None:
    first, second, third = mooncake.read(SAMPLE.splitlines(), block_size)
    assert [r.arrival for r in (first, second, third)] == [0.0, 1.0, 2.5]
    assert (first.tokens, second.tokens, third.tokens) == (1100, 513, 1536)
    assert (first.output, third.output) == (20, 2)
    alike = [a == b for a, b in zip(first.keys, third.keys, strict=False)]
    assert alike[: 1024 // block_size] == [True] * (1024 // block_size)
    assert not any(alike[1024 // block_size :])
    assert not set(second.keys) & set(first.keys)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
        '{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}',
        '{"input_length": 1, "output_length": 1, "hash_ids": [1]}',
    ],
)
def test_lines_that_make_no_sense_are_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        mooncake.read([SAMPLE.splitlines()[0], line], 64)


class Known(Bench):
    """Runs whose result is known: all is well up to a load that depends on the policy's options."""

    def run(self, contender: Contender, seed: int, pace: float) -> Outcome:
        self.runs += 1
        limit = 10.0 + float(contender.options.get("overlap_weight", 1.0)) + contender.split
        return replace(OUTCOME, attained=min(1.0, max(0.0, 1.0 - (pace / limit - 1.0))))


def known(splits: int = 1) -> Known:
    return Known(Case("c", (Shape(1, 1, 1),) * splits, 5.0, lambda seed, n: []), gpu_like())


@pytest.mark.parametrize("start", [3.0, 12.0, 40.0])
def test_the_sustained_load_is_where_nine_tenths_are_well(start: float) -> None:
    """1 - (x / 11 - 1) = 0.9 at x = 12.1."""
    assert known().sustained(Contender("cost"), 1, start) == pytest.approx(12.1, rel=0.05)


def test_the_best_of_the_grid_and_of_the_splits_is_taken() -> None:
    published, best = tuned(known(splits=3), "kv", [1, 2], 14.0)
    assert (published.split, published.options, published.tuned) == (2, {}, False)
    assert best.options["overlap_weight"] == max(GRIDS["kv"]["overlap_weight"])
    assert (best.split, best.tuned) == (2, True)
    assert len(tuned(known(), "random", [1], 12.0)) == 1


@pytest.mark.parametrize("policy", [OURS, *PEERS])
def test_every_contender_is_a_policy_of_the_master(policy: str) -> None:
    for contender in [Contender(policy), *grid(policy)]:
        config = contender.config(1)
        assert load_policy(config, __import__("random").Random(1)).config is config
        assert all(getattr(config, name) == value for name, value in contender.options.items())


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
        made = case(name, calibrated(), 64, 100)
        for shape in made.shapes:
            assert shape.encode + shape.prefill + shape.decode == 64
            assert shape.prefill > 1 and shape.decode > 1 and (shape.encode > 1) == (name != "chat")


def result(ours: float, peer: float) -> Result:
    made = known().case
    lines = [Line(Contender(OURS), (ours,), OUTCOME), Line(Contender("kv"), (peer,), OUTCOME)]
    return Result(replace(made, name="pictures"), tuple(lines), peer, OUTCOME, 5.0, 3)


@pytest.mark.parametrize(("ours", "holds"), [(12.0, True), (11.0, False)])
def test_rows_hold_against_the_best_peer(ours: float, holds: bool) -> None:
    goodput, balance = report.rows([result(ours, 10.0)])
    assert (goodput.ours, goodput.peer) == pytest.approx((ours, 10.0))
    assert (goodput.bar, goodput.holds) == ("ratio >= 1.15", holds)
    assert (balance.ours, balance.bar, balance.holds) == (1.5, "ratio <= 2", True)


def test_a_lost_trace_stays_in_the_table() -> None:
    text = report.markdown([result(9.0, 10.0)], calibrated(), [1], [11, 12], 1.0)
    rows: list[Any] = [line for line in text.splitlines() if line.startswith("| goodput, pictures")]
    assert len(rows) == 1 and "MISSED" in rows[0]
