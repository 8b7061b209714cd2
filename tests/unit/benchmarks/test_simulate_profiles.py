"""How fast simulated workers are: fits, data sheets."""

from dataclasses import replace

import pytest

from benchmarks.simulate.bench import Bench
from benchmarks.simulate.calibrate import fit
from benchmarks.simulate.cases import case
from benchmarks.simulate.contenders import (
    Contender,
)
from benchmarks.simulate.hardware import H200, PROFILES, QWEN_7B, roofline
from benchmarks.simulate.probes import Points
from benchmarks.simulate.profile import Profile, calibrated
from benchmarks.simulate.records import Span


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
    short = replace(made, span=Span(2.0, 1.0, lifetimes=2.0, most_s=2.0), least=40)
    bench = Bench(short, PROFILES[name]())
    found = bench.run(Contender("cost", made.shapes[0]), 1, made.pace / 4)
    assert found.attained > 0.5 and found.utilisation["encode"] > 0.0
