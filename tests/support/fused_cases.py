"""A step whose queries and keys are to be rotated, and the same by PyTorch's operations."""

from dataclasses import dataclass

import torch

from protocol.refs import KVGroup, KVLayout
from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements
from tests.support.paged_cases import of_codes

LAYER = 1
EPSILON = 1e-5
SLOTS = ((2, 0), (0, 7), (4, 3), (2, 1), (1, 7))  # block and place of each token


def own_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As transformers' models have it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)
    return weight * wide.to(x.dtype)


@dataclass(frozen=True)
class RotaryCase:
    """query [T, heads, dim], key [T, kv_heads, dim], value [T, kv_heads, v_dim], views of a wider
    tensor as after one product; cos and sin [T, dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    batch: PagedBatch
    layer: int = LAYER


def rotary_case(
    heads: int,
    kv_heads: int,
    dim: int,
    v_dim: int,
    dtype: str,
    device: str = "cpu",
    codes: str = "",
) -> RotaryCase:
    """`codes`: what the cache holds, "" for elements of `dtype`."""
    torch.manual_seed(0)
    tokens = len(SLOTS)
    sizes = [heads * dim, kv_heads * dim, kv_heads * v_dim]
    drawn = torch.randn(tokens, sum(sizes)).to(device, getattr(torch, dtype))
    parts = torch.split(drawn, sizes, dim=-1)
    query, key = (part.view(tokens, -1, dim) for part in parts[:2])
    value = parts[2].view(tokens, -1, v_dim)
    angles = torch.arange(tokens)[:, None] * torch.rand(dim // 2).repeat(2)
    layout = KVLayout((KVGroup((0,), 1, 8, 8), KVGroup((LAYER,), kv_heads, dim, v_dim)), 8, dtype)
    cache = KVCache(layout, torch.randn(5, block_elements(layout)).to(query))
    if codes:
        cache = of_codes(cache, codes)
    blocks, offsets = torch.tensor(SLOTS, device=device).T.contiguous()
    batch = PagedBatch(
        cache, blocks, offsets, torch.zeros(1, 5, dtype=torch.int64),
        [0, tokens], [tokens], torch.arange(tokens),
    )  # fmt: skip
    cos, sin = angles.cos().to(query), angles.sin().to(query)
    return RotaryCase(query, key, value, cos, sin, batch)


def rotated(x: torch.Tensor, case: RotaryCase) -> torch.Tensor:
    """As transformers' models rotate. [T, heads, dim]"""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * case.cos[:, None] + turned * case.sin[:, None]
