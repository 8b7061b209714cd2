"""Qwen's grids are those of transformers' own processors, within every bound."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import AutoImageProcessor

from protocol.errors import InvalidRequest
from services.frontend.families import Family
from services.frontend.media.pixel_bounds import PixelBounds, bounds_of
from tests.support.frontend_helpers import family_in, write_model

QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


EDGE_SIZES = [(1, 1), (1, 200), (1, 201), (200, 1), (201, 1), (28, 28), (27, 29), (5000, 26)]


def qwen_truth(processor: Any, width: int, height: int) -> tuple[int, int, int] | None:
    """The grid of transformers' processor, None if it refuses; run on pixels where that is cheap,
    else by the method it offers for sizes.
    """
    try:
        if width * height <= 40_000:
            pixels = np.zeros((height, width, 3), dtype=np.uint8)
            grid = processor(images=[pixels], input_data_format="channels_last")["image_grid_thw"]
            t, h, w = np.asarray(grid)[0].tolist()
            return t, h, w
        patch, merge = processor.patch_size, processor.merge_size
        rows, columns = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl.smart_resize(
            height,
            width,
            patch * merge,
            processor.size["shortest_edge"],
            processor.size["longest_edge"],
        )
        return 1, rows // patch, columns // patch
    except ValueError:
        return None


def check_qwen(family: Family, processor: Any, width: int, height: int) -> None:
    truth = qwen_truth(processor, width, height)
    if truth is None:
        with pytest.raises(InvalidRequest):
            family.measure_image(width, height)
        return
    extent = family.measure_image(width, height)
    assert extent.grid == truth
    assert extent.length == math.prod(truth) // processor.merge_size**2
    assert family.extent_of({"image_grid_thw": list(truth)}) == extent


@pytest.mark.parametrize("model_type", QWEN)
@pytest.mark.parametrize("published", [False, True], ids=["tiny", "published"])
def test_qwen_grids_are_those_of_transformers(
    model_type: str, published: bool, tmp_path: Path
) -> None:
    model = write_model(model_type, tmp_path)
    if published:  # the pixel bounds of the published checkpoints
        patch = 16 if model_type == "qwen3_vl" else 14
        bounds = {"shortest_edge": 65536, "longest_edge": 16777216}
        size = bounds if patch == 16 else {"shortest_edge": 3136, "longest_edge": 12845056}
        options: dict[str, Any] = {"image_processor_type": "Qwen2VLImageProcessor", "size": size}
        options |= {"patch_size": patch, "merge_size": 2}
        (model / "preprocessor_config.json").write_text(json.dumps(options))
    family, processor = family_in(model), AutoImageProcessor.from_pretrained(model)
    dice = random.Random(0)
    sizes = [(dice.randint(1, 300), dice.randint(1, 130)) for _ in range(20)]
    sizes += [(int(2 ** dice.uniform(0, 13)), int(2 ** dice.uniform(0, 13))) for _ in range(130)]
    for width, height in [*EDGE_SIZES, *sizes]:
        check_qwen(family, processor, width, height)


def test_qwen_older_pixel_bounds_win_over_size(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path)
    options = json.loads((model / "preprocessor_config.json").read_text())
    options |= {"min_pixels": 28 * 28 * 9, "max_pixels": 28 * 28 * 16}
    (model / "preprocessor_config.json").write_text(json.dumps(options))
    family, processor = family_in(model), AutoImageProcessor.from_pretrained(model)
    for size in [(20, 20), (100, 300), (500, 500), (3000, 40)]:
        check_qwen(family, processor, *size)
    assert family.measure_image(500, 500).length == 16


@pytest.mark.parametrize("model_type", QWEN)
def test_qwen_grids_within_bounds_of_a_request(model_type: str, tmp_path: Path) -> None:
    model = write_model(model_type, tmp_path)
    family, processor = family_in(model), AutoImageProcessor.from_pretrained(model)
    usual, factor = family.bounds, processor.patch_size * processor.merge_size
    assert usual is not None
    for asked in (
        {"max_pixels": 9 * factor**2},
        {"size": {"longest_edge": 5 * factor**2}},
        {"images_kwargs": {"min_pixels": 12 * factor**2, "max_pixels": 20 * factor**2}},
    ):
        bounds = bounds_of(asked, PixelBounds(factor**2, 1 << 24))
        size = {"shortest_edge": bounds.least, "longest_edge": bounds.most}
        for width, height in [(20, 20), (100, 300), (190, 200), (300, 40)]:
            pixels = np.zeros((height, width, 3), dtype=np.uint8)
            made = processor(images=[pixels], input_data_format="channels_last", size=size)
            truth = tuple(np.asarray(made["image_grid_thw"])[0].tolist())
            assert family.measure_image(width, height, bounds).grid == truth
    assert family.measure_image(300, 300).length > 9


@pytest.mark.parametrize(
    ("asked", "param"),
    [({"max_pixels": 0}, "max_pixels"), ({"max_pixels": "9"}, "max_pixels"),
     ({"fps": 2}, "fps"), ({"size": {"height": 5}}, "size.height"), ({"size": 5}, "size"),
     ({"images_kwargs": {"do_resize": False}}, "images_kwargs.do_resize")],
)  # fmt: skip
def test_options_that_are_no_bounds(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bounds_of(asked, PixelBounds(1, 100))
    assert caught.value.param == f"mm_processor_kwargs.{param}"


def test_bounds_must_leave_a_size() -> None:
    with pytest.raises(InvalidRequest, match="min_pixels is 50, more than max_pixels, 40"):
        bounds_of({"max_pixels": 40}, PixelBounds(50, 100))


def test_qwen_overrides_change_tokens_and_identity(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path)
    plain, overridden = family_in(model), family_in(model, max_pixels=28 * 28 * 4)
    assert overridden.measure_image(500, 500).length == 4
    assert plain.measure_image(500, 500).length > 4
    assert plain.processor != overridden.processor


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"image_grid_thw": "1,2,2"},
        {"image_grid_thw": [1, 2]},
        {"image_grid_thw": [1, 0, 2]},
        {"image_grid_thw": [2, 2, 2]},
        {"image_grid_thw": [1, 3, 2]},
        {"image_grid_thw": [1, 2, 2.0]},
        {"image_grid_thw": [1, 2, True]},
        {"image_grid_thw": [1, 2, 1 << 40]},
    ],
)
def test_qwen_refuses_a_grid_that_no_picture_has(metadata: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        family_in(write_model("qwen2_vl", tmp_path)).extent_of(metadata)
