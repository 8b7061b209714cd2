"""Vision towers on a GPU in bfloat16, with fused kernels and segments of several lengths, beside
the same tower on the CPU in float32."""

import pytest
import torch

from connectors.base import EC_TENSOR
from protocol.types import EncodeItem
from services.engine.model import fused_vision
from services.engine.model.vision import VisionModel
from tests.conftest import ModelDir
from tests.support.conversations import picture
from tests.support.engines import png

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SIZES = ((640, 480), (70, 300), (333, 222), (56, 56))
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def embedded(vision: VisionModel) -> list[torch.Tensor]:
    """Of each picture, all in one run."""
    items = [EncodeItem(f"{i}", "image", 1, data=png(picture(i, *s))) for i, s in enumerate(SIZES)]
    pixels = [vision._move(vision.prepare(item).pixels) for item in items]
    with torch.inference_mode():
        return [found[EC_TENSOR].float().cpu() for found in vision._encode(vision._model, pixels)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
def test_embeddings_are_those_of_a_cpu(
    family: str, dtype: torch.dtype, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    fuse = fused_vision.fuse
    monkeypatch.setattr(
        "services.engine.model.vision.fuse", lambda *given: parts.append(fuse(*given))
    )
    path = model_dir(family)
    expected = embedded(VisionModel(path, torch.float32, "cpu", 1 << 24))
    actual = embedded(VisionModel(path, dtype, "cuda", 1 << 24, "auto"))
    assert parts
    assert parts[0] > 0
    for ours, theirs in zip(actual, expected, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < TOLERANCE[dtype]
