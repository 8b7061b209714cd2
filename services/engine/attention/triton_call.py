"""One layer's attention as Triton kernels take it: tensors, strides, constants by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.triton_plan import Tile, pad
from services.engine.attention.triton_tiles import LOG2E

Arguments = dict[str, Any]


@dataclass(frozen=True)
class TritonCall:
    """One layer's attention."""

    out: torch.Tensor  # [T, heads, v_dim], written here
    query: torch.Tensor  # [heads, T, k_dim]
    layer: int  # number of the layer in the KV cache
    batch: PagedBatch  # where each token's KV lies
    scale: float  # factor of the dot products
    softcap: float | None  # bound of the scores by tanh, None for none
    sinks: torch.Tensor | None  # [heads], logits of nothing, None for none

    @property
    def kv_heads(self) -> int:
        return self.batch.cache.key(self.layer).shape[2]

    @property
    def window(self) -> int:
        """Tokens that a token looks back to, 0 for all."""
        return self.batch.cache.window(self.layer)

    @property
    def group(self) -> int:
        return self.query.shape[0] // self.kv_heads

    def sizes(self) -> tuple[int, int, int]:
        """What the choice of a tile depends on."""
        return self.query.itemsize, max(self.query.shape[-1], self.out.shape[-1]), self.group

    def outputs(self) -> Arguments:
        """Arguments of every kernel that computes outputs."""
        v_dim = self.out.shape[-1]
        return {
            "out_ptr": self.out,
            "starts_ptr": self.batch.starts_tensor,
            "contexts_ptr": self.batch.contexts_tensor,
            "stride_ot": self.out.stride(0),
            "stride_oh": self.out.stride(1),
            "V_DIM": v_dim,
            "PAD_V": pad(v_dim),
            "WINDOW": self.window,
        }

    def inputs(self, tile: Tile) -> Arguments:
        """Arguments of every kernel that reads the cache."""
        cache, k_dim = self.batch.cache, self.query.shape[-1]
        key, value = cache.key(self.layer), cache.value(self.layer)
        return {
            "query_ptr": self.query,
            "key_ptr": key,
            "value_ptr": value,
            "tables_ptr": self.batch.block_tables,
            "sinks_ptr": self.sinks,
            # With a softcap the kernel goes to base 2 behind it, otherwise by the scale.
            "scale": self.scale if self.softcap is not None else self.scale * LOG2E.value,
            "table_width": self.batch.block_tables.stride(0),
            "stride_qt": self.query.stride(1),
            "stride_qh": self.query.stride(0),
            **strides_of("k", key),
            **strides_of("v", value),
            **scale_arguments(cache, self.layer),
            "GROUP": self.group,
            "K_DIM": k_dim,
            "PAD_K": pad(k_dim),
            "BLOCK_SIZE": cache.block_size,
            "SOFTCAP": self.softcap,
            "BLOCK_M": tile.rows,
            "BLOCK_N": tile.keys,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def scale_arguments(cache: KVCache, layer: int) -> Arguments:
    """Arguments of every kernel that reads or writes a cache which may be of codes."""
    scales = (cache.key_scale(layer), cache.value_scale(layer)) if cache.kind else (None, None)
    strides = scales[0].stride() if scales[0] is not None else (0, 0)
    return {
        "key_scale_ptr": scales[0],
        "value_scale_ptr": scales[1],
        "stride_cb": strides[0],
        "stride_cs": strides[1],
        "KIND": cache.kind,
    }


def strides_of(name: str, cached: torch.Tensor) -> dict[str, int]:
    """Of [blocks, block_size, kv_heads, dim], as the kernels name them."""
    return {f"stride_{name}{axis}": cached.stride(i) for i, axis in enumerate("bsh")}
