"""The first layer of a vision tower on a CPU: a convolution over patches that are apart already is
a matrix product, and much faster as one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from services.engine.model.cpu_linear import WideningLinear, computes_linear

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


def multiply_patches(model: nn.Module) -> int:
    """Have convolutions compute patches that come one by one as a product; returns how many."""
    found: list[Any] = [m for m in model.modules() if type(m) in _CONVOLUTIONS]
    suited = [module for module in found if _suits(module)]
    for module in suited:
        # An instance's attribute wins over its class's method.
        module.forward = _PatchProduct(module)
    return len(suited)


def _suits(module: Any) -> bool:
    plain = module.groups == 1 and not any(module.padding) and set(module.dilation) == {1}
    return plain and module.stride == module.kernel_size


class _PatchProduct:
    """A convolution's forward."""

    def __init__(self, module: Any) -> None:
        self._own = module.forward
        self._shape = tuple(module.weight.shape[1:])
        self._product = _product(module.weight.flatten(1), module.bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [patches, channels, *kernel] → [patches, out, 1 …]; any other input as it was."""
        if tuple(x.shape[1:]) != self._shape:
            return self._own(x)  # type: ignore[no-any-return]
        out = self._product(x.flatten(1))
        return out[(..., *[None] * (x.dim() - 2))]


def _product(
    weight: torch.Tensor, bias: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    if WideningLinear.suits(weight) and computes_linear():
        return WideningLinear(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)
