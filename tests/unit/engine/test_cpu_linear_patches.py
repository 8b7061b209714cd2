"""A tower's first layer computes the same as a product."""

import pytest
import torch
from torch import nn

from services.engine.model.cpu_linear import multiply_patches

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_patches_that_are_apart_are_multiplied(bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4), bias=bias, dtype=dtype)
    model = nn.Sequential(layer).requires_grad_(False)
    patches, whole = torch.randn(5, 3, 2, 4, 4).to(dtype), torch.randn(1, 3, 4, 8, 8).to(dtype)
    expected = model(patches), model(whole)
    assert multiply_patches(model) == 1
    for x, wanted in zip((patches, whole), expected, strict=True):
        torch.testing.assert_close(model(x), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_convolutions_that_overlap_stay() -> None:
    model = nn.ModuleList(
        [
            nn.Conv2d(3, 8, 4, 2),
            nn.Conv2d(3, 8, 4, 4, padding=1),
            nn.Conv2d(3, 8, 4, 4, padding="valid"),
            nn.Conv2d(4, 8, 4, 4, groups=2),
            nn.Conv2d(3, 8, 2, 2, dilation=2),
        ]
    )
    assert multiply_patches(model) == 0
