"""The kernel of `few_rows_kernel` for a weight that oneDNN has packed, where it can be used."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch

from services.engine.attention.numba_runtime import Kernel, compiled

_SAMPLES = 4096  # weights of each layer that are looked up where its order has them


class FewRows:
    """Multiplies a few rows with one weight."""

    def __init__(self, kernel: Kernel, panel: int, most: int, shape: tuple[int, int]) -> None:
        """`shape`: of the weight [out, in], in panels of so many outputs."""
        self._kernel = kernel
        self._panels = shape[0] // panel
        self._outputs, self._width = shape
        self._most = most * self._width  # elements of so many rows

    @staticmethod
    def of(packed: torch.Tensor, weight: torch.Tensor) -> FewRows | None:
        """packed: what oneDNN has made of weight [out, in]; None if its order is another than the
        kernel's, or there is no kernel."""
        if weight.dtype is not torch.bfloat16 or (found := _kernel()) is None:
            return None
        kernel, panel, most = found
        outputs, width = weight.shape
        fits = outputs % panel == 0 and width % 2 == 0
        # PyTorch does not say which order oneDNN chose: a size without padding, and weights found
        # in their places, tell it.
        fits = fits and torch.ops.mkldnn._nbytes(packed) == weight.nbytes
        if not fits or not _in_order(packed, weight, panel):
            return None
        return FewRows(kernel, panel, most, (outputs, width))

    def suits(self, x: torch.Tensor) -> bool:
        """Whether these are few rows [..., in]; of more oneDNN is as fast."""
        return 0 < x.numel() <= self._most

    def __call__(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [..., in] → [..., out]"""
        rows = x.reshape(-1, self._width).contiguous()
        out = x.new_empty(*x.shape[:-1], self._outputs)
        self._kernel(
            self._panels, out.data_ptr(), rows.data_ptr(), self._width,
            torch.ops.mkldnn.data_ptr(packed), 0 if bias is None else bias.data_ptr(), len(rows),
            self._outputs, self._width,
        )  # fmt: skip
        return out


def _in_order(packed: torch.Tensor, weight: torch.Tensor, panel: int) -> bool:
    """Whether weights are found where the kernel looks for them."""
    outputs, width = weight.shape
    random = np.random.default_rng(0)
    n, k = random.integers(outputs, size=_SAMPLES), random.integers(width, size=_SAMPLES)
    places = (n // panel) * panel * width + (k // 2) * 2 * panel + (n % panel) * 2 + k % 2
    pointer = ctypes.POINTER(ctypes.c_int16)
    address = ctypes.cast(torch.ops.mkldnn.data_ptr(packed), pointer)
    bits = np.ctypeslib.as_array(address, (outputs * width,))
    return bool((bits[places] == weight.view(torch.int16).numpy()[n, k]).all())


@cache
def _kernel() -> tuple[Kernel, int, int] | None:
    """With the outputs of a panel and the most rows; None without Numba or AVX512-BF16. The first
    call takes a second."""

    def make(parallel: Any) -> tuple[Kernel, int, int]:
        from services.engine.attention.numba_products import PANEL
        from services.engine.model.few_rows_kernel import MOST, few_rows

        return Kernel(few_rows, parallel), PANEL, MOST

    return compiled(make, "linear layers of few rows", products=True)
