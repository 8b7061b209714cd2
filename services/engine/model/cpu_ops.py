"""The kernels of `cpu_kernels` as functions of bfloat16 tensors on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from services.engine.attention.batch import PagedBatch
from services.engine.attention.numba_runtime import Kernel
from services.engine.model import cpu_kernels

_ALONE = 8  # rows that one thread computes before others have woken up


class CpuOps:
    """As `FusedOps` says."""

    def __init__(self, parallel: Any) -> None:
        """`parallel`: see `numba_runtime.team`."""
        self._parallel = parallel
        self._norm, self._add_norm, self._gate, rotate = (
            Kernel(compiled, parallel)
            for compiled in (
                cpu_kernels.norm, cpu_kernels.add_norm, cpu_kernels.gate, cpu_kernels.rotate
            )
        )  # fmt: skip
        self._rotates = {0: rotate}

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """[..., width] → [..., width], contiguous; rows of x may lie apart, at one distance."""
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        self._norm(
            len(rows), out.data_ptr(), rows.data_ptr(), rows.stride(0), weight.data_ptr(),
            rows.shape[1], float(epsilon), alone=len(rows) < _ALONE,
        )  # fmt: skip
        return out.view(x.shape)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and x + residual. All [..., width]; residual contiguous."""
        rows = x.reshape(-1, x.shape[-1])
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        self._add_norm(
            len(rows), out.data_ptr(), rows.data_ptr(), rows.stride(0), weight.data_ptr(),
            rows.shape[1], float(epsilon), total.data_ptr(), residual.data_ptr(),
            alone=len(rows) < _ALONE,
        )  # fmt: skip
        return out, total

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, [..., width] both; rows may lie apart."""
        gates, ups = (x.reshape(-1, x.shape[-1]) for x in (gate, up))
        out = torch.empty_like(gates, memory_format=torch.contiguous_format)
        self._gate(
            len(gates), out.data_ptr(), gates.data_ptr(), gates.stride(0), ups.data_ptr(),
            ups.stride(0), gates.shape[1], alone=len(gates) < _ALONE,
        )  # fmt: skip
        return out.view(gate.shape)

    def add_product(
        self, x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """As `FusedOps` says."""
        return rows.add_(F.linear(x, weight))

    def rotate_and_write(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layer: int,
        batch: PagedBatch,
    ) -> None:
        """As `FusedOps` says; the heads of a token lie together."""
        tokens, heads, dim = query.shape
        kv_heads, v_dim = value.shape[1:]
        pool, cache = batch.cache.pool, batch.cache
        place = cache.place(layer)
        self._rotate(cache.kind)(
            tokens, query.data_ptr(), query.stride(0), heads, key.data_ptr(), key.stride(0),
            value.data_ptr(), value.stride(0), kv_heads, cos.data_ptr(), cos.stride(0),
            sin.data_ptr(), sin.stride(0), dim, v_dim, pool.data_ptr(), pool.stride(0),
            place.keys, place.values, batch.slot_blocks.data_ptr(), batch.slot_offsets.data_ptr(),
            *((place.key_scales, place.value_scales) if cache.kind else ()),
            alone=tokens < _ALONE,
        )  # fmt: skip

    def _rotate(self, kind: int) -> Kernel:
        """`kind`: see `KVCache`."""
        # No request waits for this: the trial at the start is the first to ask for a kind.
        if kind not in self._rotates:
            from services.engine.model.cpu_kernels import compile_rotate

            self._rotates[kind] = Kernel(compile_rotate(kind), self._parallel)
        return self._rotates[kind]
