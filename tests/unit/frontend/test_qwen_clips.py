"""Tokens of a clip: as many as transformers' own code makes, for any size and length."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import FrameSampling
from services.frontend.clips.sampling import Clip
from services.frontend.families.qwen_clips import QwenClips
from services.frontend.families.timed_clips import TimedClips
from services.frontend.media.pixel_bounds import PixelBounds
from tests.support.video_reference import grid_of, own_code, sample, sample_timed, timed_grid_of

PUBLISHED: dict[str, Any] = {  # what a directory with a file for pictures alone says
    "min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 14, "temporal_patch_size": 2,
    "merge_size": 2,
}  # fmt: skip
SIDES = st.integers(1, 4320)


def clips_with(**options: Any) -> QwenClips:
    return QwenClips(options, {})


@given(SIDES, SIDES, st.integers(2, 9000), st.sampled_from([PUBLISHED, {}]))
@example(1, 201, 60, {})
@example(1920, 1080, 9000, PUBLISHED)
@example(1, 1, 230, PUBLISHED)
def test_any_size_and_length(width: int, height: int, frames: int, options: dict[str, Any]) -> None:
    found, clip = clips_with(**options), Clip(width, height, frames, 30.0)
    size = {"shortest_edge": found.bounds.least, "longest_edge": found.bounds.most}
    # Of 230 frames rounding leads it to one behind the last, where transformers fails.
    count = int((sample(frames, 30.0, fps=2.0).frames_indices < frames).sum())
    try:
        grid = grid_of(count, width, height, size=size)
    except ValueError:
        with pytest.raises(InvalidRequest, match="200-fold"):
            found.measure(clip, FrameSampling())
        return
    extent = found.measure(clip, FrameSampling())
    assert (extent.grid, extent.seconds) == (grid, 2 / (count / frames * 30.0))
    assert extent.length == grid[0] * grid[1] * grid[2] // 4


def test_bounds_of_a_directory_and_of_a_request() -> None:
    assert clips_with().bounds == PixelBounds(128 * 28 * 28, 768 * 28 * 28)
    assert clips_with(**PUBLISHED).bounds == PixelBounds(3136, 12_845_056)
    clip, asked = Clip(1920, 1080, 300, 30.0), PixelBounds(56 * 56, 8 * 28 * 28)
    assert clips_with().measure(clip, FrameSampling(), asked).length <= 8 * 10


def test_frames_that_share_a_number_of_tokens() -> None:
    """As the reference implementation bounds a clip, where the directory says so."""
    long = Clip(1920, 1080, 30 * 3600, 30.0)
    most = clips_with(cap_pixels_per_frame=True).measure(long, FrameSampling())
    share = 128_000 * 28 * 28 * 9 // 10 * 2 // 768
    _, height, width = most.grid
    assert share * 0.9 < height * width * 14 * 14 <= share
    assert most.length < clips_with().measure(long, FrameSampling()).length
    with pytest.raises(ConfigError, match="cap_pixels_per_frame"):
        clips_with(cap_pixels_per_frame="yes")


def test_frames_that_are_not_resized() -> None:
    clips = clips_with(do_resize=False)
    assert clips.measure(Clip(56, 84, 8, 4.0), FrameSampling()).grid == (2, 6, 4)
    with pytest.raises(InvalidRequest, match="multiples of 28"):
        clips.measure(Clip(57, 84, 8, 4.0), FrameSampling())


@given(SIDES, SIDES, st.integers(2, 9000), st.sampled_from([{}, {"max_pixels": 24 << 20}]))
@example(1, 201, 60, {})
@example(20, 4000, 60, {})
@example(1920, 1080, 9000, {})
def test_any_size_and_length_of_qwen3(
    width: int, height: int, frames: int, options: dict[str, Any]
) -> None:
    found, clip = TimedClips(options, {}), Clip(width, height, frames, 30.0)
    size = {"shortest_edge": found.bounds.least, "longest_edge": found.bounds.most}
    taken = sample_timed(frames, 30.0, fps=2.0).frames_indices
    try:
        grid = timed_grid_of(len(taken), width, height, size=size)
    except ValueError:
        with pytest.raises(InvalidRequest, match="200-fold"):
            found.measure(clip, FrameSampling())
        return
    extent = found.measure(clip, FrameSampling())
    assert extent.grid == grid and len(extent.before) == grid[0]
    assert extent.length == grid[0] * grid[1] * grid[2] // 4


def test_frames_of_qwen3_that_share_a_number_of_tokens() -> None:
    """As `Qwen3VLVideoProcessor.resize` bounds each frame, where the directory says so."""
    found = TimedClips({"cap_pixels_per_frame": True, "max_pixels": 24 << 20}, {})
    least, most = found.bounds
    clip, count = Clip(1920, 1080, 300, 30.0), 20
    each = max(min(768 * 32 * 32, most // count), int(least * 1.05))
    size = own_code("qwen3_vl").smart_resize(count, 1080, 1920, 2, 32, least, each * count)
    extent = found.measure(clip, FrameSampling())
    assert extent.grid == (10, size[0] // 16, size[1] // 16)
    assert (
        extent.length
        < TimedClips({"max_pixels": 24 << 20}, {}).measure(clip, FrameSampling()).length
    )


def test_a_single_frame_of_qwen3() -> None:
    with pytest.raises(InvalidRequest, match="has 1 frames, the model needs 2"):
        TimedClips({}, {}).measure(Clip(64, 64, 1, 30.0), FrameSampling())
