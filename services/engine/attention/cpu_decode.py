"""Attention on a CPU by compiled kernels, where they can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.cpu_prompts import heads_side_by_side, prompt_kernels
from services.engine.attention.kv_cache import KVCache, LayerPlace
from services.engine.attention.numba_runtime import Kernel, compiled
from services.engine.attention.torch_attention import Scoring, TorchAttention

_AT_ONCE = 4  # elements and tokens, at the least, by the kernel


class _Shape(NamedTuple):
    """`heads`: query heads to a KV head; `block`: tokens of a block; `kind`: see `KVCache`."""

    heads: int
    k_dim: int
    v_dim: int
    block: int
    kind: int


@dataclass(frozen=True)
class _Rows:
    """The requests of a step that bring one token each: their tokens, contexts and blocks."""

    count: int  # R
    tokens: torch.Tensor  # int64[R]
    contexts: torch.Tensor  # int64[R]
    tables: torch.Tensor  # int64[R, B]


class CpuAttention(TorchAttention):
    """Attends in bfloat16 by kernels of its own, single tokens and prompts, all else by PyTorch."""

    def __init__(self) -> None:
        self._kernels: dict[_Shape, Kernel | None] = {}

    def attend_single(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scoring: Scoring,
        out: torch.Tensor,
    ) -> None:
        """As `TorchAttention` does."""
        kernel = None
        if scoring.plain and query.dtype is torch.bfloat16:
            kernel = self._kernel_for(query.shape[0], batch.cache.place(layer), batch.cache)
        if kernel is None:
            super().attend_single(query, layer, batch, scoring, out)
            return
        rows = batch.planned("single tokens", lambda: _rows(batch))
        if not rows.count:
            return
        place, pool = batch.cache.place(layer), batch.cache.pool
        queries, kv_heads = heads_side_by_side(query), place.kv_heads
        kernel(
            rows.count * kv_heads, queries.data_ptr(), queries.stride(0),
            out.data_ptr(), rows.tokens.data_ptr(), pool.data_ptr(), *place[:4], pool.stride(0),
            kv_heads, rows.tables.data_ptr(), rows.tables.shape[1], rows.contexts.data_ptr(),
            rows.count, place.window, float(scoring.scale),
        )  # fmt: skip

    def attend_prompt(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        request: int,
        scoring: Scoring,
        out: torch.Tensor,
    ) -> None:
        """As `TorchAttention` does."""
        plain = scoring.plain and batch.span_starts is None
        prompts = prompt_kernels() if plain and query.dtype is torch.bfloat16 else None
        if prompts is None or not prompts.suits(batch.cache, layer):
            super().attend_prompt(query, layer, batch, request, scoring, out)
        else:
            prompts.attend(query, layer, batch, request, scoring.scale, out)

    def _kernel_for(self, heads: int, place: LayerPlace, cache: KVCache) -> Kernel | None:
        """None if there is none for this layer's shape, or none can be compiled here."""
        group = heads // place.kv_heads
        shape = _Shape(group, place.k_dim, place.v_dim, cache.block_size, cache.kind)
        if shape not in self._kernels:
            self._kernels[shape] = _kernel(shape)
        return self._kernels[shape]


def _kernel(shape: _Shape) -> Kernel | None:
    """None where Numba cannot compile it, or the shape is not made of vectors."""
    if any(n % _AT_ONCE for n in (shape.block, shape.k_dim, shape.v_dim)):
        return None

    def make(parallel: Any) -> Kernel:
        from services.engine.attention.cpu_decode_kernel import compile_kernel

        return Kernel(compile_kernel(*shape), parallel)

    return compiled(make, f"attention of single tokens, {shape}")


def _rows(batch: PagedBatch) -> _Rows:
    prompts = set(batch.prompts)
    chosen = [request for request in range(batch.num_requests) if request not in prompts]
    return _Rows(
        len(chosen),
        torch.tensor([batch.query_starts[request] for request in chosen], dtype=torch.int64),
        torch.tensor([batch.context_lens[request] for request in chosen], dtype=torch.int64),
        batch.block_tables[chosen].contiguous(),
    )
