"""What the vision part makes of pictures that its weights do not bear."""

import torch

from connectors.base import EC_TENSOR
from services.engine.attention.kv_cache import DTYPES
from services.engine.model.vision import VisionModel
from services.engine.scheduling.seams import NotFinite
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import request_of


def test_embeddings_that_are_not_finite_fail_their_picture_alone(model_dir: ModelDir) -> None:
    model = model_dir("qwen3_vl")  # embeddings of several levels
    vision = VisionModel(model, DTYPES["float32"], "cpu", 1 << 24)
    items = request_of(model, asking(picture(1), picture(2), "?"), "r")[1].items
    batch = [vision.prepare(item) for item in items]
    whole = vision.encode(batch)
    encode = vision._encode

    def spoilt(module, pixels):  # type: ignore[no-untyped-def]
        first, second = encode(module, pixels)
        level = max(second)  # not the one that enters the prompt
        second[level][3, 5] = torch.nan
        return [first, second]

    vision._encode = spoilt
    good, bad = vision.encode(batch)
    assert isinstance(good, dict) and isinstance(whole[0], dict)
    assert torch.equal(good[EC_TENSOR], whole[0][EC_TENSOR])
    assert isinstance(bad, NotFinite) and items[1].mm_hash[:16] in bad.message
    vision._encode = encode
    assert all(isinstance(result, dict) for result in vision.encode(batch))
