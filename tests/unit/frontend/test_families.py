"""Tokens of a picture: equal to what transformers' own image processors make, for any size."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoImageProcessor
from transformers.image_utils import ChannelDimension, SizeDict
from transformers.models.gemma4 import image_processing_pil_gemma4 as pil_gemma4
from transformers.models.pixtral import image_processing_pil_pixtral as pil_pixtral
from transformers.models.smolvlm import image_processing_pil_smolvlm as pil_smolvlm
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.prompts.tokenizing import Span
from tests.support.frontend_helpers import family_in, write_model
from tests.unit.frontend.test_qwen_families import EDGE_SIZES

SIDES = st.integers(1, 6000)


def llava_truth(processor: Any, model: Path, width: int, height: int) -> int:
    """The count by transformers' processor, whose methods are called without its tokenizer."""
    options = json.loads((model / "processor_config.json").read_text())
    around = transformers.LlavaOnevisionProcessor.__new__(transformers.LlavaOnevisionProcessor)
    around.image_processor = processor
    around.num_image_tokens = options["num_image_tokens"]
    around.vision_aspect_ratio = options["vision_aspect_ratio"]
    tile = processor.size["height"]
    return int(around._get_number_of_features(height, width, tile, tile))


PUBLISHED_LLAVA = {
    "image_processor_type": "LlavaOnevisionImageProcessor",
    "size": {"height": 384, "width": 384},
}


@pytest.fixture(scope="module", params=["tiny", "published"])
def llava(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = write_model("llava_onevision", tmp_path_factory.mktemp("llava"))
    if request.param == "published":
        (model / "preprocessor_config.json").write_text(json.dumps(PUBLISHED_LLAVA))
        options = {"num_image_tokens": 729, "vision_aspect_ratio": "anyres_max_9"}
        (model / "processor_config.json").write_text(json.dumps(options))
    return model


def test_llava_counts_are_those_of_transformers(llava: Path) -> None:
    family, processor = family_in(llava), AutoImageProcessor.from_pretrained(llava)

    @settings(max_examples=200, deadline=None, database=None)
    @given(SIDES, SIDES)
    @example(1, 1)
    @example(1, 6000)
    @example(6000, 1)
    @example(384, 384)
    @example(2304, 2304)
    def check(width: int, height: int) -> None:
        extent = family.measure_image(width, height)
        assert extent.length == llava_truth(processor, llava, width, height)
        assert family.extent_of({"image_grid_thw": list(extent.grid)}) == extent

    check()


def test_llava_wastes_least_in_any_order_of_resolutions(tmp_path: Path) -> None:
    model = write_model("llava_onevision", tmp_path)
    options = json.loads((model / "preprocessor_config.json").read_text())
    options["image_grid_pinpoints"] = options["image_grid_pinpoints"][::-1]
    (model / "preprocessor_config.json").write_text(json.dumps(options))
    family, processor = family_in(model), AutoImageProcessor.from_pretrained(model)
    for width in range(1, 120, 7):
        for height in range(1, 120, 5):
            truth = llava_truth(processor, model, width, height)
            assert family.measure_image(width, height).length == truth


def test_llava_drops_a_token_for_the_default_strategy(tmp_path: Path) -> None:
    model = write_model("llava_onevision", tmp_path)
    full = family_in(model).measure_image(50, 50).length
    options = json.loads((model / "processor_config.json").read_text())
    options["vision_feature_select_strategy"] = "default"
    (model / "processor_config.json").write_text(json.dumps(options))
    assert family_in(model).measure_image(50, 50).length == full - 1


@pytest.mark.parametrize("most", [3, 12])
def test_internvl_counts_are_those_of_transformers(most: int, tmp_path: Path) -> None:
    model = write_model("internvl", tmp_path)
    options = json.loads((model / "preprocessor_config.json").read_text())
    (model / "preprocessor_config.json").write_text(json.dumps({**options, "max_patches": most}))
    family, processor = family_in(model), AutoImageProcessor.from_pretrained(model)

    @settings(max_examples=200, deadline=None, database=None)
    @given(SIDES, SIDES)
    @example(1, 6000)
    @example(56, 56)
    @example(79, 79)
    @example(80, 80)
    @example(112, 112)
    def check(width: int, height: int) -> None:
        extent = family.measure_image(width, height)
        cut = {"crop_to_patches": True}
        assert extent.length == 16 * processor.get_number_of_image_patches(height, width, cut)
        assert family.extent_of({"image_grid_thw": list(extent.grid)}) == extent

    check()


def test_internvl_refuses_contradictions(tmp_path: Path) -> None:
    model = write_model("internvl", tmp_path)
    (model / "processor_config.json").write_text(json.dumps({"image_seq_length": 25}))
    with pytest.raises(ConfigError, match="image_seq_length is 25, but the model makes 16"):
        family_in(model)
    (model / "processor_config.json").write_text(json.dumps({"image_seq_length": 16}))
    with pytest.raises(ConfigError, match="min_patches 4 is more than max_patches 3"):
        family_in(model, min_patches=4)
    with pytest.raises(ConfigError, match="no height and width"):
        family_in(model, size={"shortest_edge": 56})


@pytest.mark.parametrize(
    "size", [{"longest_edge": 112}, {"longest_edge": 1540}, {"height": 98, "width": 210}]
)
def test_mistral3_grids_are_those_of_transformers(size: dict[str, int], tmp_path: Path) -> None:
    family = family_in(write_model("mistral3", tmp_path), size=size)
    edge = size.get("longest_edge")
    most = (edge, edge) if edge else (size["height"], size["width"])

    @settings(max_examples=200, deadline=None, database=None)
    @given(SIDES, SIDES)
    @example(1, 112)
    @example(1, 6000)
    @example(6000, 3)
    @example(113, 14)
    def check(width: int, height: int) -> None:
        shape = np.broadcast_to(np.uint8(0), (height, width, 3))
        resized = pil_pixtral.get_resize_output_image_size(shape, most, 14, ChannelDimension.LAST)
        if 0 in resized:
            with pytest.raises(InvalidRequest, match="too long and narrow"):
                family.measure_image(width, height)
            return
        extent = family.measure_image(width, height)
        assert extent.grid == (1, resized[0] // 14, resized[1] // 14)
        assert extent.length == math.prod(extent.grid)
        assert family.extent_of({"image_grid_thw": list(extent.grid)}) == extent

    check()


def test_mistral3_refuses_contradictions(tmp_path: Path) -> None:
    model = write_model("mistral3", tmp_path)
    for grid in ([2, 3, 3], [1, 9, 3], [1, 3, 1 << 30]):
        with pytest.raises(InvalidRequest, match="not the grid of a picture"):
            family_in(model).extent_of({"image_grid_thw": grid})
    with pytest.raises(ConfigError, match="do_resize"):
        family_in(model, do_resize=False)
    with pytest.raises(ConfigError, match="no longest_edge"):
        family_in(model, size={"shortest_edge": 56})
    tokens = {"patch_size": 7, "spatial_merge_size": 2, "image_break_token": "[ROW]"}
    (model / "processor_config.json").write_text(json.dumps(tokens))
    with pytest.raises(ConfigError, match=r"no token \[ROW\]"):
        family_in(model)
    (model / "processor_config.json").write_text(json.dumps({"patch_size": 7}))
    with pytest.raises(ConfigError, match=r"7 pixels a side by .*, but .* of 14"):
        family_in(model)


@pytest.mark.parametrize("most", [70, 280, 1120])
def test_gemma4_grids_are_those_of_transformers(most: int, tmp_path: Path) -> None:
    family = family_in(write_model("gemma4", tmp_path), max_soft_tokens=most)

    @settings(max_examples=200, deadline=None, database=None)
    @given(SIDES, SIDES)
    @example(1, 6000)
    @example(6000, 1)
    @example(1, 70)
    @example(71, 1)
    def check(width: int, height: int) -> None:
        rows, columns = pil_gemma4.get_aspect_ratio_preserving_size(height, width, 4, 9 * most, 3)
        extent = family.measure_image(width, height)
        assert extent.grid == (1, rows // 12, columns // 12)
        assert extent.length == math.prod(extent.grid)
        assert family.extent_of({"image_grid_thw": list(extent.grid)}) == extent

    check()


def test_gemma4_refuses_contradictions(tmp_path: Path) -> None:
    model = write_model("gemma4", tmp_path)
    for grid in ([2, 3, 3], [1, 9, 8]):
        with pytest.raises(InvalidRequest, match="not the grid of a picture"):
            family_in(model).extent_of({"image_grid_thw": grid})
    with pytest.raises(ConfigError, match="do_resize"):
        family_in(model, do_resize=False)
    with pytest.raises(ConfigError, match=r"pooling_kernel_size of the .* is 2, but the model's 3"):
        family_in(model, pooling_kernel_size=2)
    config = json.loads((model / "config.json").read_text())
    del config["text_config"]["hidden_size_per_layer_input"]
    (model / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="hidden_size_per_layer_input"):
        family_in(model)


@pytest.mark.parametrize(
    "options",
    [
        {"size": {"longest_edge": 84}},
        {"size": {"longest_edge": 2016}, "max_image_size": {"longest_edge": 504}},
        {"size": {"longest_edge": 9000}, "max_image_size": {"longest_edge": 504}},
        {"size": {"height": 100, "width": 200}},
        {"do_image_splitting": False},
    ],
    ids=["tiny", "published", "large", "fixed", "whole"],
)
def test_smolvlm_tiles_are_those_of_transformers(options: dict[str, Any], tmp_path: Path) -> None:
    model = write_model("smolvlm", tmp_path)
    tile = options.get("max_image_size", {"longest_edge": 56})["longest_edge"]
    tokens = (tile // 7 // 2) ** 2
    (model / "processor_config.json").write_text(json.dumps({"image_seq_len": tokens}))
    family, code = family_in(model, **options), processing_smolvlm.get_image_prompt_string
    processor = SizesOfSmolVLM(size={"longest_edge": 84}, max_image_size={"longest_edge": 56})
    for name, value in options.items():
        setattr(processor, name, value)

    @settings(max_examples=100, deadline=None, database=None)
    @given(SIDES, SIDES)
    @example(1, 6000)
    @example(6000, 1)
    @example(84, 56)
    @example(57, 57)
    def check(width: int, height: int) -> None:
        rows, columns = processor.tiles(height, width)
        expected = code(rows, columns, 1, "<fake_token_around_image>", "<image>", "<global-img>")
        extent = family.measure_image(width, height)
        span = Span("image", extent.length, extent.before)
        assert span.text(family.placeholders["image"]) == expected
        assert extent.length == tokens * (rows * columns + 1)
        assert family.extent_of({"image_grid_thw": list(extent.grid)}) == extent

    check()


class SizesOfSmolVLM(SmolVLMImageProcessorPil):
    """Cuts a picture as transformers does, without its pixels."""

    def tiles(self, height: int, width: int) -> tuple[int, int]:
        if not self.do_image_splitting:
            return 0, 0
        image = np.broadcast_to(np.uint8(0), (3, height, width))
        size, tile = SizeDict(**self.size), self.max_image_size
        image = self.resize_for_vision_encoder(self.resize(image, size), tile["longest_edge"])
        _, rows, columns = self.split_images(image, tile)
        return rows, columns

    def resize(self, image: Any, size: SizeDict, resample: Any = None, **options: Any) -> Any:
        rows, columns = size.height, size.width
        if size.longest_edge:
            rows, columns = pil_smolvlm.get_resize_output_image_size(image, size.longest_edge)
        return np.broadcast_to(np.uint8(0), (3, rows, columns))


def test_smolvlm_refuses_contradictions(tmp_path: Path) -> None:
    model = write_model("smolvlm", tmp_path)
    with pytest.raises(ConfigError, match="do_resize"):
        family_in(model, do_resize=False)
    with pytest.raises(ConfigError, match="no longest_edge"):
        family_in(model, size={"shortest_edge": 56})
    with pytest.raises(ConfigError, match="image_seq_len is 16, but the model makes 64"):
        family_in(model, max_image_size={"longest_edge": 112})


def test_gemma_pictures_have_one_length(tmp_path: Path) -> None:
    family = family_in(write_model("gemma3", tmp_path))
    assert {family.measure_image(w, h).length for w, h in EDGE_SIZES} == {16}
    placeholder = family.placeholders["image"]
    assert placeholder.text == "\n\n<start_of_image><image_soft_token><end_of_image>\n\n"
    assert placeholder.text.count(placeholder.pad) == 1


def test_gemma_refuses_contradicting_lengths(tmp_path: Path) -> None:
    model = write_model("gemma3", tmp_path, mm_tokens_per_image=25)
    with pytest.raises(ConfigError, match="image_seq_length"):
        family_in(model)


def test_an_unknown_family_with_media_is_refused_by_name(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path, model_type="new_vl")
    with pytest.raises(ConfigError, match="new_vl"):
        family_in(model)


def test_a_model_without_vision_takes_no_pictures(tmp_path: Path) -> None:
    family = family_in(write_model("llama", tmp_path))
    assert not family.placeholders
    with pytest.raises(InvalidRequest):
        family.measure_image(10, 10)


def test_a_vision_model_needs_its_processor(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path)
    (model / "preprocessor_config.json").unlink()
    with pytest.raises(ConfigError, match="preprocessor_config"):
        family_in(model)


def test_a_media_token_missing_from_the_tokenizer_is_refused(tmp_path: Path) -> None:
    model = write_model("qwen2_vl", tmp_path, image_token_id=9_999)
    with pytest.raises(ConfigError, match="9999"):
        family_in(model)
