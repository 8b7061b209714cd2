"""Pictures are prepared to the values that transformers' own processors give."""

import numpy as np
import pytest
from transformers import AutoImageProcessor
from transformers.image_processing_backends import PilBackend

from services.engine.model.picture_processor import picture_processor
from tests.conftest import ModelDir
from tests.support.conversations import picture
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


def test_pictures_of_floats_are_left_to_transformers(model_dir: ModelDir) -> None:
    ours = picture_processor(model_dir("qwen2_5_vl"))
    assert isinstance(ours, PilBackend)
    image = np.full((3, 4, 4), 0.25, np.float64)
    assert ours.rescale(image, 2.0).tolist() == np.full((3, 4, 4), 0.5).tolist()
    assert ours.normalize(image, [0.25] * 3, [2.0] * 3).tolist() == np.zeros((3, 4, 4)).tolist()
    assert image.tolist() == np.full((3, 4, 4), 0.25).tolist()
