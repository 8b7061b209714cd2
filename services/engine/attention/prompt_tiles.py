"""Attention of a prompt, or a picture, in bfloat16 on a CPU: some queries at a time over the keys
that they see.

On two cores with AVX-512 PyTorch's attention multiplies bfloat16 at 140 GFLOP/s where oneDNN's
matrix product reaches 900, and it computes scores that a mask then hides. Scores are sums in
float32 here as they are there: factors are float32 tensors of bfloat16 values, which oneDNN may
multiply as bfloat16. Where it cannot (AVX2), float32 products have four times PyTorch's rate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from services.engine.attention.cpu_softmax import causal_softmax
from services.engine.attention.numba_runtime import onednn_has_bfloat16

LEAST_QUERIES = 32  # fewer are not worth the float32 copies of the keys
_MOST_ROWS, _LEAST_ROWS = 64, 16  # queries of a tile
_TILE_BYTES = 8 << 20  # of a tile's scores, so that they are still in a cache when read


def as_tiles(query: torch.Tensor) -> bool:
    """Whether this is the way to attend with a query of this kind."""
    return query.dtype is torch.bfloat16 and query.device.type == "cpu"


def attend_tiles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    *,
    causal: bool = True,
) -> torch.Tensor:
    """`causal`: the last T of K tokens see those up to themselves; else each sees all.

    query [heads, T, k_dim], key [kv_heads, K, k_dim], value [kv_heads, K, v_dim], bfloat16 all.
    Returns [T, heads, v_dim].
    """
    heads, tokens = query.shape[:2]
    kv_heads, context = key.shape[:2]
    queries = query.float().unflatten(0, (kv_heads, -1))
    keys = key.new_empty(kv_heads, key.shape[2], context, dtype=torch.float32)
    keys.copy_(key.transpose(1, 2))
    softmax = causal_softmax() or softmax_by_torch
    narrow = onednn_has_bfloat16()
    values = value.contiguous() if narrow else value.float().contiguous()
    out = query.new_empty(tokens, heads, value.shape[2])
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, _TILE_BYTES // (4 * heads * context)))
    with _multiplied_as_bfloat16():
        for first in range(0, tokens, rows):
            tile = queries[:, :, first : first + rows]
            count = tile.shape[2]
            seen = context - tokens + first + count if causal else context
            scores = tile.flatten(1, 2) @ keys[:, :, :seen]
            found = softmax(scores, count if causal else 1, scale, values.dtype) @ values[:, :seen]
            out[first : first + count] = found.view(heads, count, -1).transpose(0, 1)
    return out


def softmax_by_torch(
    scores: torch.Tensor, queries: int, scale: float, dtype: torch.dtype
) -> torch.Tensor:
    """As `CausalSoftmax`, by PyTorch."""
    scores *= scale
    hidden = torch.ones(queries, queries, dtype=torch.bool).triu(1)
    own = scores.unflatten(1, (-1, queries))[..., scores.shape[-1] - queries :]
    own.masked_fill_(hidden, float("-inf"))
    return torch.softmax(scores, dim=-1).to(dtype)


@contextlib.contextmanager
def _multiplied_as_bfloat16() -> Iterator[None]:
    """Lets oneDNN round the factors of float32 products to bfloat16."""
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    # This holds for the whole process, so for no longer than these products take. Of what other
    # threads compute in float32 meanwhile, only spectra of audio have products (`model.audio`).
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
