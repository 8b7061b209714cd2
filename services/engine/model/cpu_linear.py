"""Linear layers in bfloat16 on a CPU for which oneDNN has none, such as one with AVX2 alone.

PyTorch multiplies bfloat16 there at a quarter of the rate of float32, and float32 weights take
twice the memory, which is what a step that decodes waits for. The kernel reads bfloat16 and
multiplies at three quarters of oneDNN's rate for float32: see docs/benchmarks/engine.md.

Beside them the first layer of a vision tower, in any dtype and on any device: a convolution over
patches that are apart already is a matrix product, and much faster as one (`multiply_patches`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from services.engine.attention.numba_runtime import Kernel, compiled, onednn_has_bfloat16

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
_OUTPUTS_MULTIPLE = 4  # the kernel computes so many for a row at once


class WideningLinear(nn.Module):
    """y = x Wᵀ + b in bfloat16, W as it lies."""

    alone = True
    copies = False  # it reads the weight that it is given

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight [out, in], bias [out] or None, bfloat16; `ValueError` unless it `suits`."""
        super().__init__()
        found = _kernel()
        if found is None or not self.suits(weight):
            raise ValueError(f"no kernel for weights {tuple(weight.shape)}, {weight.dtype}")
        self._kernel, self._outputs_at_once = found
        self._weight = weight
        self._bias = bias

    @staticmethod
    def suits(weight: torch.Tensor) -> bool:
        """Whether the kernel takes a weight [out, in]."""
        ours = weight.dtype is torch.bfloat16 and weight.is_contiguous()
        return ours and weight.device.type == "cpu" and weight.shape[0] % _OUTPUTS_MULTIPLE == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]"""
        outputs, width = self._weight.shape
        rows = x.reshape(-1, width)
        if len(rows) < 2:  # PyTorch reads the weights of one as fast as the memory gives them
            return F.linear(x, self._weight, self._bias)
        out = x.new_empty(len(rows), outputs)
        wide = rows.float().contiguous()
        self._kernel(
            -(-outputs // self._outputs_at_once), out.data_ptr(), wide.data_ptr(),
            self._weight.data_ptr(), 0 if self._bias is None else self._bias.data_ptr(),
            len(rows), outputs, width,
        )  # fmt: skip
        return out.view(*x.shape[:-1], outputs)


def computes_linear() -> bool:
    """Whether there is a kernel, and a use for it: oneDNN multiplies no bfloat16 on this CPU."""
    return not onednn_has_bfloat16() and _kernel() is not None


@cache
def _kernel() -> tuple[Kernel, int] | None:
    """With the number of outputs of a piece of work; None where Numba cannot compile it. The first
    call takes seconds."""

    def make(parallel: Any) -> tuple[Kernel, int]:
        from services.engine.model.cpu_linear_kernel import OUTPUTS, linear

        return Kernel(linear, parallel), OUTPUTS

    return compiled(make, "linear layers")


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
