"""Pictures are prepared to the values that transformers' own processors give."""

import base64
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor
from transformers.image_processing_backends import PilBackend

from connectors.base import EC_TENSOR
from protocol.errors import InvalidRequest
from protocol.generate import encode_item
from services.engine.model import picture_patches
from services.engine.model.picture_patches import patch_cutter
from services.engine.model.picture_processor import picture_processor
from services.engine.model.vision import VisionModel
from services.frontend.config import FrontendConfig
from services.frontend.render import Frontend
from tests.conftest import ModelDir
from tests.support.conversations import picture
from tests.support.frontend_helpers import render
from tests.support.tiny_models import VISION_FAMILIES


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_values_are_those_of_transformers(family: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    own = AutoImageProcessor.from_pretrained(path)
    ours = picture_processor(path)
    for image in (picture(1), picture(2, 300, 200)):
        expected = own(images=[image], return_tensors="np")
        found = ours(images=[image], return_tensors="np")
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(found[name], values), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_patches_are_of_the_models_type(dtype: torch.dtype, model_dir: ModelDir) -> None:
    """Of one picture and of several, as transformers' and then `.to` make them."""
    path = model_dir("qwen2_5_vl")
    own, ours = AutoImageProcessor.from_pretrained(path), picture_processor(path, dtype)
    assert patch_cutter() is not None
    images = [picture(1), picture(2, 300, 200), picture(3, 57, 80)]
    for some in (images[:1], images):
        expected = own(images=some, return_tensors="pt")
        found = ours(images=some, return_tensors="pt")
        assert found["pixel_values"].dtype == dtype
        assert torch.equal(found["pixel_values"], expected["pixel_values"].to(dtype))
        assert torch.equal(found["image_grid_thw"], expected["image_grid_thw"])


@pytest.mark.parametrize(
    "options",
    [
        {"do_rescale": False},
        {"do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
        {"patch_size": 7, "merge_size": 1},
        {"temporal_patch_size": 3},
        {"image_mean": [0.1, 0.5, 0.9], "image_std": [0.2, 0.3, 0.7]},
    ],
)
def test_patches_by_a_requests_options(options: dict[str, Any], model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    own, ours = AutoImageProcessor.from_pretrained(path), picture_processor(path)
    expected = own(images=[picture(2, 300, 200)], return_tensors="np", **options)
    found = ours(images=[picture(2, 300, 200)], return_tensors="np", **options)
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


def test_a_picture_that_is_no_whole_patches_is_refused(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    for processor in (AutoImageProcessor.from_pretrained(path), picture_processor(path)):
        with pytest.raises(ValueError):
            processor(images=[picture(1, 57, 80)], return_tensors="pt", do_resize=False)


def test_without_kernels_transformers_cuts(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen2_5_vl")
    own, ours = AutoImageProcessor.from_pretrained(path), picture_processor(path)
    monkeypatch.setattr(picture_patches, "patch_cutter", lambda: None)
    expected = own(images=[picture(1)], return_tensors="np")
    found = ours(images=[picture(1)], return_tensors="np")
    assert np.array_equal(found["pixel_values"], expected["pixel_values"])


def test_pictures_of_floats_are_left_to_transformers(model_dir: ModelDir) -> None:
    ours = picture_processor(model_dir("qwen2_5_vl"))
    assert isinstance(ours, PilBackend)
    image = np.full((3, 4, 4), 0.25, np.float64)
    assert ours.rescale(image, 2.0).tolist() == np.full((3, 4, 4), 0.5).tolist()
    assert ours.normalize(image, [0.25] * 3, [2.0] * 3).tolist() == np.zeros((3, 4, 4)).tolist()
    assert image.tolist() == np.full((3, 4, 4), 0.25).tolist()


def test_a_picture_within_bounds_of_its_own(model_dir: ModelDir) -> None:
    """As many embeddings as the frontend has counted, from the pixels that transformers makes."""
    path = model_dir("qwen2_5_vl")
    vision = VisionModel(path, torch.float32, "cpu", 1 << 20)
    front = Frontend.load(FrontendConfig(model=path))
    factor = 28
    bounds = (factor**2, 6 * factor**2)
    file = BytesIO()
    picture(2, 300, 200).save(file, "PNG")
    messages = [
        {
            "role": "user",
            "content": [
                {
                    "type": "image_url",
                    "image_url": {
                        "url": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
                    },
                }
            ],
        }
    ]
    kwargs = {"min_pixels": bounds[0], "max_pixels": bounds[1]}
    rendered = render(front, messages, model=front.config.names[0], mm_processor_kwargs=kwargs)
    (item,) = rendered.generate.mm_items
    assert item.length <= 6
    (prepared,) = [vision.prepare(encode_item(item, file.getvalue()))]
    size = {"shortest_edge": bounds[0], "longest_edge": bounds[1]}
    truth = AutoImageProcessor.from_pretrained(path)(
        images=[picture(2, 300, 200)], return_tensors="np", size=size
    )
    assert np.array_equal(prepared.pixels["pixel_values"].numpy(), truth["pixel_values"])
    (tensors,) = vision.encode([prepared])
    assert not isinstance(tensors, Exception)
    assert tensors[EC_TENSOR].shape[0] == item.length
    with pytest.raises(InvalidRequest, match="not become larger"):
        vision.prepare(msgspec.structs.replace(encode_item(item, b""), pixels=(1, 1 << 21)))
