"""Frames of clips as patches: the values of transformers' own processing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import is_torchvision_available

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import EncodeItem, FrameSampling
from services.engine.model.clip_processor import ClipProcessor, indices
from services.frontend.clips.limits import ClipLimits
from services.frontend.clips.readers import ClipReaders
from services.frontend.clips.sampling import Clip, sampled
from services.frontend.families.timed_clips import TimedGrid
from tests.support.clips import DrawnClip, clip
from tests.support.frontend_helpers import write_model
from tests.support.video_reference import process, process_timed, sample

SIZE = {"shortest_edge": 4 * 28**2, "longest_edge": 112**2}
CASES: list[tuple[DrawnClip, dict[str, Any]]] = [
    (clip(1), {"fps": 2.0}),
    (clip(2, frames=60, rate=30, size=(320, 180)), {"fps": 4.0}),
    (clip(3, frames=9, size=(90, 400)), {"num_frames": 4}),
    (clip(4, frames=25, rate=25, size=(112, 112)), {"num_frames": 24}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model("qwen2_5_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def readers() -> Iterator[ClipReaders]:
    made = ClipReaders(ClipLimits(), 1)
    yield made
    made.close()


def item_of(drawn: DrawnClip, grid: list[int], sampling: dict[str, Any]) -> EncodeItem:
    frames = FrameSampling(max_frames=40, **sampling)
    length = grid[0] * grid[1] * grid[2] // 4
    return EncodeItem("ab" * 32, "video", length, tuple(grid), drawn.data, frames=frames)


@pytest.mark.parametrize(("drawn", "sampling"), CASES)
def test_patches_are_those_of_transformers(
    drawn: DrawnClip, sampling: dict[str, Any], model: Path, readers: ClipReaders
) -> None:
    truth = process(*drawn.decoded, size=SIZE, max_frames=40, **sampling)
    item = item_of(drawn, truth["video_grid_thw"][0].tolist(), sampling)
    found = ClipProcessor(model, readers).patches(item)
    assert torch.equal(found["image_grid_thw"], truth["video_grid_thw"])
    assert torch.equal(found["pixel_values"], truth["pixel_values_videos"])
    with pytest.raises(InvalidRequest, match="placeholder span"):
        ClipProcessor(model, readers).patches(msgspec.structs.replace(item, length=1))


@pytest.mark.parametrize(("drawn", "sampling"), CASES)
def test_patches_of_qwen3_are_those_of_transformers(
    drawn: DrawnClip, sampling: dict[str, Any], tmp_path: Path, readers: ClipReaders
) -> None:
    size = {"shortest_edge": 4 * 32**2, "longest_edge": 20 * 112**2}
    truth = process_timed(*drawn.decoded, size=size, max_frames=40, **sampling)
    item = item_of(drawn, truth["video_grid_thw"][0].tolist(), sampling)
    processor = ClipProcessor(write_model("qwen3_vl", tmp_path), readers, TimedGrid)
    found = processor.patches(item)
    assert torch.equal(found["image_grid_thw"], truth["video_grid_thw"])
    assert torch.equal(found["pixel_values"], truth["pixel_values_videos"])


@pytest.mark.skipif(not is_torchvision_available(), reason="torchvision is not installed")
@pytest.mark.parametrize(("drawn", "sampling"), CASES)
def test_the_reference_is_transformers_own_class(
    drawn: DrawnClip, sampling: dict[str, Any]
) -> None:
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    frames, rate = drawn.decoded
    options = {"size": SIZE, "max_frames": 40}
    metadata = {"total_num_frames": len(frames), "fps": rate}
    truth = Qwen2VLVideoProcessor(**options)(
        videos=[torch.from_numpy(frames)], video_metadata=[metadata], do_sample_frames=True,
        return_tensors="pt", return_metadata=True, **sampling,
    )  # fmt: skip
    found = process(frames, rate, **options, **sampling)
    assert torch.equal(found["pixel_values_videos"], truth["pixel_values_videos"])
    assert torch.equal(found["video_grid_thw"], truth["video_grid_thw"])
    assert found["second_per_grid_ts"] == [2 / truth["video_metadata"][0].sampled_fps]


@settings(max_examples=300)
@given(st.integers(2, 60_000), st.sampled_from([24.0, 25.0, 29.97002997, 60.0]),
       st.floats(0.2, 8))  # fmt: skip
def test_indices_are_those_of_transformers(total: int, rate: float, fps: float) -> None:
    found = Clip(64, 48, total, rate)
    truth = [index for index in sample(total, rate, fps=fps).frames_indices if index < total]
    assert indices(found, sampled(found, FrameSampling(fps=fps), 2)) == truth


@pytest.mark.parametrize(
    "options", [{"resample": 1}, {"do_normalize": False}, {"size": {"height": 5}}]
)
def test_a_directory_that_says_what_is_not_known(
    options: dict[str, Any], tmp_path: Path, readers: ClipReaders
) -> None:
    model = write_model("qwen2_vl", tmp_path)
    file = model / "video_preprocessor_config.json"
    file.write_bytes(msgspec.json.encode({**msgspec.json.decode(file.read_bytes()), **options}))
    with pytest.raises(ConfigError, match="video processor"):
        ClipProcessor(model, readers)
