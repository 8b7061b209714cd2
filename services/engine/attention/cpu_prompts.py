"""The kernels of `cpu_prompt_kernel` as a function of tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.numba_runtime import Kernel, compiled

_KEPT = 16 << 20  # elements: 32 MiB, of 16,384 tokens with eight heads of 64


class PromptKernels:
    """Causal attention of a request's last tokens over its whole context, in bfloat16."""

    def __init__(self, parallel: Any) -> None:
        """`parallel`: see `numba_runtime.team`."""
        from services.engine.attention import cpu_prompt_kernel as kernels
        from services.engine.attention.numba_products import MOST_ROWS, PANEL

        self._panel, self._rows = PANEL, MOST_ROWS
        self._pack = Kernel(kernels.pack, parallel)
        self._attend = Kernel(kernels.attend, parallel)
        self._panels = torch.empty(0, dtype=torch.bfloat16)  # kept: new memory has to be cleared

    def suits(self, cache: KVCache, layer: int) -> bool:
        """Whether the kernels read a layer's blocks: no codes, and whole panels of values."""
        place = cache.place(layer)
        return not cache.kind and place.k_dim % 2 == 0 and place.v_dim % self._panel == 0

    def attend(
        self, query: torch.Tensor, layer: int, batch: PagedBatch, request: int, scale: float,
        out: torch.Tensor,
    ) -> None:  # fmt: skip
        """Fill out [T, heads, v_dim] for the request's T tokens of query [heads, all, k_dim]."""
        place, pool = batch.cache.place(layer), batch.cache.pool
        first, end = batch.query_starts[request : request + 2]
        context, tokens, heads = batch.context_lens[request], end - first, query.shape[0]
        queries = heads_side_by_side(query[:, first:end])
        seen = max(context - tokens - place.window + 1, 0) if place.window else 0
        begin = seen // self._panel
        count = -(-context // self._panel) - begin
        # One room for all requests and layers: kernels are done when a call returns, and an engine
        # computes in one thread at a time.
        room = self._room(place.kv_heads * count * self._panel * (place.k_dim + place.v_dim))
        panels = int(room.data_ptr())
        self._pack(
            place.kv_heads * count, panels, count, begin, pool.data_ptr(), pool.stride(0),
            place.keys, place.values, place.kv_heads, place.k_dim, place.v_dim,
            batch.cache.block_size, batch.block_tables[request].data_ptr(), context,
        )  # fmt: skip
        self._attend(
            heads * -(-tokens // self._rows), out.data_ptr(), queries.data_ptr(),
            queries.stride(0), panels, count, begin, tokens, context, heads, place.kv_heads,
            place.k_dim, place.v_dim, place.window, float(scale),
        )  # fmt: skip

    def _room(self, elements: int) -> torch.Tensor:
        """Room for so many elements of panels, bfloat16; up to `_KEPT` of it stays for the next."""
        if self._panels.numel() >= elements:
            return self._panels
        room = torch.empty(elements, dtype=torch.bfloat16)
        if elements <= _KEPT:
            self._panels = room
        return room


def heads_side_by_side(query: torch.Tensor) -> torch.Tensor:
    """[heads, T, k_dim] → [T, heads, k_dim], a token's heads side by side; tokens may lie apart."""
    tokens = query.transpose(0, 1)
    side_by_side = tokens.stride(2) == 1 and tokens.stride(1) == tokens.shape[2]
    return tokens if side_by_side else tokens.contiguous()


@cache
def prompt_kernels() -> PromptKernels | None:
    """None without Numba or AVX512-BF16. The first call takes a second."""
    return compiled(PromptKernels, "attention of prompts", products=True)
