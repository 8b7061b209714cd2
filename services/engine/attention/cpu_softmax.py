"""The kernels of `softmax_kernel` as a function of tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from services.engine.attention.numba_runtime import Kernel, compiled


class CausalSoftmax:
    """Softmax of scores float32 [..., keys], contiguous, whose rows are several times `queries`
    queries: the last ones of the keys' tokens, each of which sees those up to itself. With one
    query to a time each row sees all."""

    def __init__(self, parallel: Any) -> None:
        """`parallel`: see `numba_runtime.team`."""
        from services.engine.attention import softmax_kernel

        self._rows = softmax_kernel.ROWS
        self._soften = Kernel(softmax_kernel.soften, parallel)
        self._narrow = Kernel(softmax_kernel.soften_to_bfloat16, parallel)

    def __call__(
        self, scores: torch.Tensor, queries: int, scale: float, dtype: torch.dtype
    ) -> torch.Tensor:
        """The weights of scores · scale > 0: float32 in place of the scores, or bfloat16."""
        keys = scores.shape[-1]
        rows = scores.numel() // keys
        items, words = -(-rows // self._rows), (scores.data_ptr(), rows, keys, queries)
        if dtype is torch.float32:
            self._soften(items, *words, float(scale))
            return scores
        out = torch.empty_like(scores, dtype=dtype)
        self._narrow(items, *words, float(scale), out.data_ptr())
        return out


@cache
def causal_softmax() -> CausalSoftmax | None:
    """None where kernels cannot run. The first call may take seconds."""
    return compiled(CausalSoftmax, "softmax of prompts")


def compile_ahead(dtype: torch.dtype) -> None:
    """No prompt is to wait for the compilation of what an engine computes in `dtype`."""
    # Prompts of other types are left to PyTorch's attention (`prompt_tiles.as_tiles`).
    if dtype is torch.bfloat16:
        causal_softmax()
