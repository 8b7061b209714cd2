"""When a vision tower is tried with fused kernels. What they compute: `interpreted_fused`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from services.engine.model import vision
from services.engine.model.vision import VisionModel
from tests.conftest import ModelDir
from tests.support.engines import engine


@pytest.fixture(autouse=True)
def tried(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """As on a GPU; the embeddings of each trial."""
    found: list[torch.Tensor] = []

    def fuse(_: Any, __: Any, embed: Callable[[], torch.Tensor]) -> int:
        found.append(embed())
        return 0

    monkeypatch.setattr(vision, "fuse", fuse)
    monkeypatch.setattr(vision, "runs_triton", lambda _: True)
    return found


def test_two_pictures_are_tried(model_dir: ModelDir, tried: list[torch.Tensor]) -> None:
    VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 20)
    assert len(tried) == 1
    assert len(tried[0]) > 50  # tokens: several windows, of more than one size
    assert tried[0].isfinite().all()


def test_pictures_that_are_too_large_are_not_tried(
    model_dir: ModelDir, tried: list[torch.Tensor]
) -> None:
    VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1000)
    assert tried == []


@pytest.mark.parametrize("fused", [True, False])
def test_the_flag_decides(fused: bool, model_dir: ModelDir, tried: list[torch.Tensor]) -> None:
    engine(model_dir("qwen2_5_vl"), parts=("vision",), fused_kernels=fused).close()
    assert len(tried) == fused


def test_towers_of_other_families_are_left(model_dir: ModelDir, tried: list[torch.Tensor]) -> None:
    VisionModel(model_dir("gemma3"), torch.float32, "cpu", 1 << 20)
    assert tried == []
