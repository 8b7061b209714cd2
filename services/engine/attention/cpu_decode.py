"""Decode attention on a CPU by the compiled kernel of `cpu_decode_kernel`, where it can be used."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.torch_attention import TorchAttention

logger = logging.getLogger(__name__)
_TOKENS_AT_ONCE = 4  # of a block, by the kernel
_OPENMP = re.compile(r"\S*/lib(gomp|iomp5|omp)\S*\.so\S*$")


class _Shape(NamedTuple):
    """`heads`: query heads to a KV head; `block`: tokens of a block."""

    heads: int
    k_dim: int
    v_dim: int
    block: int


@dataclass(frozen=True)
class _Rows:
    """The requests of a step that bring one token each: their tokens, contexts and blocks."""

    tokens: Any  # int64[R]
    contexts: Any  # int64[R]
    tables: Any  # int64[R, B]


class CpuAttention(TorchAttention):
    """Attends single tokens in bfloat16 by a kernel of its own, all else by PyTorch."""

    def __init__(self) -> None:
        self._kernels: dict[_Shape, Any] = {}
        self._usable = True

    def attend_single(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """As `TorchAttention` does."""
        kernel = None
        if softcap is None and sinks is None and query.dtype is torch.bfloat16:
            kernel = self._kernel_for(query.shape[0], layer, batch.cache)
        if kernel is None:
            super().attend_single(query, layer, batch, scale, softcap, sinks, out)
            return
        rows = batch.planned("single tokens", lambda: _rows(batch))
        if not len(rows.tokens):
            return
        cache, pool = batch.cache, batch.cache.pool
        key, value = cache.key(layer), cache.value(layer)
        keys, values = (view.storage_offset() - pool.storage_offset() for view in (key, value))
        kernel(
            _bits(query.transpose(0, 1)), _bits(out), rows.tokens, _bits(pool), keys, values,
            pool.stride(0), key.shape[2], rows.tables, rows.contexts, cache.window(layer),
            np.float32(scale),
        )  # fmt: skip

    def _kernel_for(self, heads: int, layer: int, cache: KVCache) -> Any:
        """None if there is none for this layer's shape, or none can be compiled here."""
        _, block, kv_heads, k_dim = cache.key(layer).shape
        shape = _Shape(heads // kv_heads, k_dim, cache.value(layer).shape[3], block)
        if not self._usable or block % _TOKENS_AT_ONCE:
            return None
        if shape not in self._kernels:
            try:
                self._kernels[shape] = _compiled(shape)
            except Exception as error:  # of Numba or the system: PyTorch attends as well
                logger.warning("decode attention has no kernel here: %s", error)
                self._usable = False
                return None
        return self._kernels[shape]


def _rows(batch: PagedBatch) -> _Rows:
    prompts = set(batch.prompts)
    chosen = [request for request in range(batch.num_requests) if request not in prompts]
    return _Rows(
        np.array([batch.query_starts[request] for request in chosen]),
        np.array([batch.context_lens[request] for request in chosen]),
        batch.block_tables[chosen].contiguous().numpy(),
    )


def _bits(tensor: torch.Tensor) -> Any:
    """uint16[elements] of a bfloat16 tensor, copied only if it is not contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint16).numpy()


def _compiled(shape: _Shape) -> Any:
    """The kernel, run once. Its threads must be those of PyTorch: threads of another OpenMP would
    wait for work on the same cores."""
    import numba

    numba.config.THREADING_LAYER = "omp"
    from services.engine.attention.cpu_decode_kernel import compile_kernel

    before = _openmp()
    kernel = compile_kernel(*shape)
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    size = shape.block * (shape.k_dim + shape.v_dim)
    query, pool = (np.zeros(count, np.uint16) for count in (shape.heads * shape.k_dim, size))
    out, first = np.zeros(shape.heads * shape.v_dim, np.uint16), np.zeros(1, np.int64)
    kernel(
        query, out, first, pool, 0, shape.block * shape.k_dim, size, 1, first[None], first + 1, 0,
        np.float32(1.0),
    )  # fmt: skip
    if more := _openmp() - before:
        raise RuntimeError(f"Numba brings an OpenMP of its own, {', '.join(sorted(more))}")
    return kernel


def _openmp() -> set[str]:
    """OpenMP libraries in this process."""
    try:
        lines = Path(f"/proc/{os.getpid()}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {found.group() for line in lines if (found := _OPENMP.search(line))}
