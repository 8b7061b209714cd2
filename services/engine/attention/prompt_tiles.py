"""Attention of a prompt in bfloat16 on a CPU: some queries at a time over the keys that they see.

On two cores with AVX-512 PyTorch's attention multiplies bfloat16 at 140 GFLOP/s where oneDNN's
matrix product reaches 900, and it computes scores that a mask then hides. Scores are sums in
float32 here as they are there: factors are float32 tensors of bfloat16 values, which oneDNN may
multiply as bfloat16. Where it cannot (AVX2), float32 products have four times PyTorch's rate.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch

LEAST_QUERIES = 32  # fewer are not worth the float32 copies of the keys
_MOST_ROWS, _LEAST_ROWS = 64, 16  # queries of a tile
_TILE_BYTES = 16 << 20  # of a tile's scores, so that they are still in a cache when read


def attend_tiles(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """The last T of K tokens see those up to themselves.

    query [heads, T, k_dim], key [kv_heads, K, k_dim], value [kv_heads, K, v_dim], bfloat16 all.
    Returns [T, heads, v_dim].
    """
    heads, tokens = query.shape[:2]
    kv_heads, context = key.shape[:2]
    exact = math.frexp(scale)[0] == 0.5  # a power of two leaves queries the values that they are
    queries = query.float().mul_(scale if exact else 1.0).unflatten(0, (kv_heads, -1))
    keys = key.float().transpose(1, 2).contiguous()
    values = value.float().contiguous()
    out = query.new_empty(tokens, heads, value.shape[2])
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, _TILE_BYTES // (4 * heads * context)))
    hidden = torch.ones(rows, rows, dtype=torch.bool).triu(1)
    with _multiplied_as_bfloat16():
        for first in range(0, tokens, rows):
            tile = queries[:, :, first : first + rows]
            count = tile.shape[2]
            seen = context - tokens + first + count
            scores = tile.flatten(1, 2) @ keys[:, :, :seen]
            if not exact:
                scores *= scale
            own = scores.unflatten(1, (-1, count))[..., seen - count :]
            own.masked_fill_(hidden[:count, :count], float("-inf"))
            found = torch.softmax(scores, dim=-1) @ values[:, :seen]
            out[first : first + count] = found.view(heads, count, -1).transpose(0, 1)
    return out


@contextlib.contextmanager
def _multiplied_as_bfloat16() -> Iterator[None]:
    """Lets oneDNN round the factors of float32 products to bfloat16."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
