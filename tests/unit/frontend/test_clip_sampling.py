"""How many frames of a clip are taken: as transformers' own code does it, for any clip."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.types import FrameSampling
from services.frontend.clips.sampling import Clip, Sampled, sampled, spread
from tests.support.video_reference import sample, sample_timed

RATES = st.sampled_from([1.0, 5.0, 10.0, 23.976023976023978, 24.0, 25.0, 29.97002997002997, 60.0])


def clip_of(frames: int, rate: float) -> Clip:
    return Clip(64, 48, frames, rate)


def check(found: Sampled, truth: Any) -> None:
    total, taken = truth.total_num_frames, truth.frames_indices.tolist()
    if taken[-1] == total:  # rounded to a frame behind the last: transformers fails there
        assert found.count == len(taken) - 1
        return
    assert found.count == len(taken)
    assert found.seconds_between(clip_of(total, truth.fps), 2) == 2 / truth.sampled_fps


@settings(max_examples=100)
@given(st.integers(2, 20_000), RATES, st.floats(0.1, 30), st.integers(2, 60), st.integers(2, 768))
@example(100, 25.0, 2.0, 4, 768)
@example(3, 25.0, 2.0, 4, 768)
@example(15_000, 60.0, 30.0, 4, 768)
def test_frames_a_second(total: int, rate: float, fps: float, least: int, most: int) -> None:
    asked = FrameSampling(fps=fps, min_frames=least, max_frames=most)
    truth = sample(total, rate, fps=fps, min_frames=least, max_frames=most)
    check(sampled(clip_of(total, rate), asked, 2), truth)


@settings(max_examples=80)
@given(st.integers(2, 20_000), RATES, st.integers(2, 768))
def test_a_number_of_frames(total: int, rate: float, number: int) -> None:
    """Where there are fewer, transformers refuses the clip."""
    found = sampled(clip_of(total, rate), FrameSampling(num_frames=number), 2)
    if round(number / 2) * 2 > total:
        assert found.count == total // 2 * 2
        return
    check(found, sample(total, rate, num_frames=number))


@pytest.mark.parametrize("asked", [FrameSampling(), FrameSampling(num_frames=1)])
@pytest.mark.parametrize(("total", "count"), [(1, 1), (2, 2), (3, 2)])
def test_a_clip_of_hardly_any_frames(asked: FrameSampling, total: int, count: int) -> None:
    found = sampled(clip_of(total, 25.0), asked, 2)
    assert (found.count, found.step) == (count, total / count)


@settings(max_examples=100)
@given(st.integers(1, 20_000), RATES, st.floats(0.1, 30), st.integers(1, 60), st.integers(1, 768))
@example(100, 25.0, 2.0, 4, 768)
@example(3, 25.0, 2.0, 4, 768)
def test_frames_of_qwen3(total: int, rate: float, fps: float, least: int, most: int) -> None:
    asked = FrameSampling(fps=fps, min_frames=least, max_frames=most)
    truth = sample_timed(total, rate, fps=fps, min_frames=least, max_frames=most)
    assert list(spread(clip_of(total, rate), asked).indices) == truth.frames_indices.tolist()


@given(st.integers(2, 20_000), st.integers(1, 768))
def test_a_number_of_frames_of_qwen3(total: int, number: int) -> None:
    """Where there are fewer, transformers takes some twice."""
    found = spread(clip_of(total, 25.0), FrameSampling(num_frames=number))
    truth = sample_timed(total, 25.0, num_frames=min(number, total)).frames_indices.tolist()
    assert list(found.indices) == truth


def test_times_of_qwen3() -> None:
    found = spread(clip_of(9, 4.0), FrameSampling(num_frames=5))
    assert found.indices == (0, 2, 4, 6, 8)
    assert found.times(clip_of(9, 4.0), 2) == [0.25, 1.25, 2.0]
