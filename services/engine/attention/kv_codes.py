"""Keys and values in one byte an element: a code, and a scale for each token and KV head.

The scale is the row's largest magnitude over the largest code, rounded to bfloat16, which has the
range of float32. An int8 code is half a step (half of the scale) away from the value at most; a
code of fp8 (e4m3 of the OCP's 8-bit formats) has 4 significant bits, and so suits rows with a few
large elements better. A row's scale depends on that row alone: a token's codes do not depend on
what else a step computes. Kernels make the same codes, bit for bit, on a CPU and as
Triton's interpreter computes: `numba_kv_codes`, `triton_kv_codes`.
"""

from __future__ import annotations

import torch

INT8, FP8 = "int8", "fp8_e4m3"
NUMBERS = {INT8: 1, FP8: 2}
"""What kernels call the kinds of codes; 0: none, elements are stored as they are."""
LARGEST = {1: 127.0, 2: 448.0}
SCALE = torch.bfloat16
SMALLEST_SCALE = 1e-30
"""A row of a smaller scale is stored as zeros: one over the scale would not be finite."""


def encoded(rows: torch.Tensor, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8[..., dim] and scales bfloat16[...] of rows [..., dim], whose type is any float;
    a row that is not finite has such a scale."""
    wide, largest = rows.float(), LARGEST[kind]
    scales = (wide.abs().amax(-1) * (1.0 / largest)).to(SCALE)
    exact = scales.float()
    factors = torch.where(exact < SMALLEST_SCALE, 0.0, exact.reciprocal())
    # The scale may have been rounded down: the largest element would exceed the largest code.
    # For rows that are not finite any code will do, since their scale says so.
    scaled = (wide * factors.unsqueeze(-1)).nan_to_num().clamp(-largest, largest)
    if kind == NUMBERS[FP8]:
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8), scales
    return scaled.round().to(torch.int8).view(torch.uint8), scales


def decoded(
    codes: torch.Tensor, scales: torch.Tensor, kind: int, dtype: torch.dtype
) -> torch.Tensor:
    """Rows [..., dim] of codes uint8[..., dim] with scales [...]."""
    elements = codes.view(torch.float8_e4m3fn if kind == NUMBERS[FP8] else torch.int8)
    return (elements.float() * scales.float().unsqueeze(-1)).to(dtype)
