"""Paged attention through Triton kernels: the backend used on CUDA.

Gives what the PyTorch path in `attention` gives, without gathering contexts into copies. Host lists
of the batch only size the grids; what is computed follows the batch's device tensors, so that a
captured decode graph stays right when those change in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.triton_kernels import (
    decode_kernel,
    merge_kernel,
    prefill_kernel,
    write_kernel,
)
from services.engine.attention.triton_kv_codes import write_codes_kernel
from services.engine.attention.triton_plan import (
    PROGRAMS_PER_PROCESSOR,
    SplitPlan,
    Splits,
    Tile,
    decode_tile,
    pad,
    prefill_tile,
)
from services.engine.attention.triton_tiles import LOG2E

Arguments = dict[str, Any]


@dataclass(frozen=True)
class _Call:
    """One layer's attention."""

    out: torch.Tensor  # [T, heads, v_dim], written here
    query: torch.Tensor  # [heads, T, k_dim]
    layer: int
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
            **_strides("k", key),
            **_strides("v", value),
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


@dataclass(frozen=True)
class TritonAttention:
    """Attention backend of a device.

    A decode step captured as a CUDA graph, whose contexts will be other ones at each replay, wants
    `captured`, in the runs before the capture too: these compile the kernels and make the batch's
    tensors.
    """

    plan: SplitPlan
    captured: bool = False

    @staticmethod
    def for_device(device: torch.device) -> TritonAttention:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return TritonAttention(SplitPlan(processors * PROGRAMS_PER_PROCESSOR))

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: int, batch: PagedBatch) -> None:
        """Store [kv_heads, T, dim] keys and values in the batch's slots.

        One launch, where indexing takes two that each run no longer than it takes to launch them.
        """
        key, value = _contiguous_rows(key), _contiguous_rows(value)
        cache, tokens, kv_heads = batch.cache, key.shape[1], key.shape[0]
        heads = 1 if cache.kind else kv_heads  # of a program: codes are of one row each
        arguments = {
            "key_cache_ptr": cache.key(layer),
            "value_cache_ptr": cache.value(layer),
            "key_ptr": key,
            "value_ptr": value,
            "blocks_ptr": batch.slot_blocks,
            "offsets_ptr": batch.slot_offsets,
            **_strides("k", cache.key(layer)),
            **_strides("v", cache.value(layer)),
            "stride_nkt": key.stride(1),
            "stride_nkh": key.stride(0),
            "stride_nvt": value.stride(1),
            "stride_nvh": value.stride(0),
            "K_DIM": key.shape[-1],
            "V_DIM": value.shape[-1],
            "PAD_K": pad(heads * key.shape[-1]),
            "PAD_V": pad(heads * value.shape[-1]),
        }
        with torch.cuda.device_of(key):
            if cache.kind:
                arguments |= scale_arguments(cache, layer)
                self.launch(write_codes_kernel, (tokens, kv_heads), arguments)
            else:
                self.launch(write_kernel, (tokens,), {**arguments, "KV_HEADS": kv_heads})

    def attend(
        self,
        query: torch.Tensor,
        layer: int,
        batch: PagedBatch,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """query [heads, T, k_dim] → [T, heads, v_dim], this step's keys being in the cache."""
        v_dim = batch.cache.value(layer).shape[-1]
        query = _contiguous_rows(query)
        out = query.new_empty(query.shape[1], query.shape[0], v_dim)
        call = _Call(out, query, layer, batch, scale, softcap, sinks)
        # In the prefill kernel a single token would walk its whole context in one program.
        singles = batch.single_contexts if batch.decode_only or batch.span_starts is None else []
        with torch.cuda.device_of(query):
            if singles:
                self._decode(call, singles)
            if not batch.decode_only:
                self._prefill(call, skip_single=bool(singles))
        return out

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Arguments) -> None:
        """The one place where kernels start."""
        kernel[grid](**arguments)

    def _prefill(self, call: _Call, skip_single: bool) -> None:
        tile = prefill_tile(*call.sizes())
        batch, block_q = call.batch, tile.rows // call.group
        grid = (call.query.shape[1] // block_q + batch.num_requests, call.kv_heads)
        span_starts, span_ends = batch.spans(batch.cache.window(call.layer))
        arguments = {
            **call.outputs(),
            **call.inputs(tile),
            "span_starts_ptr": span_starts,
            "span_ends_ptr": span_ends,
            "num_requests": batch.num_requests,
            "SKIP_SINGLE": skip_single,
            "BLOCK_Q": block_q,
        }
        self.launch(prefill_kernel, grid, arguments)

    def _decode(self, call: _Call, contexts: Sequence[int]) -> None:
        splits = self._splits(call, contexts)
        requests, heads = call.batch.num_requests, call.query.shape[0]
        grid = (requests, call.kv_heads, splits.count)
        inputs = call.inputs(decode_tile(*call.sizes()))
        if splits.count == 1:
            partials = dict.fromkeys(("partial_ptr", "top_ptr", "total_ptr"))
            common = {**call.outputs(), **partials, "split_keys": splits.keys, "num_splits": 1}
            self.launch(decode_kernel, grid, {**common, **inputs, "SPLIT": False})
            return
        shape = (requests, heads, splits.count)
        new = call.out.new_empty
        common = {
            **call.outputs(),
            "partial_ptr": new(*shape, call.out.shape[-1], dtype=torch.float32),
            "top_ptr": new(shape, dtype=torch.float32),
            "total_ptr": new(shape, dtype=torch.float32),
            "split_keys": splits.keys,
            "num_splits": splits.count,
        }
        self.launch(decode_kernel, grid, {**common, **inputs, "SPLIT": True})
        self.launch(merge_kernel, (requests, heads), {**common, "PAD_SPLITS": pad(splits.count)})

    def _splits(self, call: _Call, contexts: Sequence[int]) -> Splits:
        visible = [min(c, call.window) for c in contexts] if call.window else contexts
        plan = self.plan.captured if self.captured else self.plan.eager
        return plan(visible, call.kv_heads)


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


def _strides(name: str, cached: torch.Tensor) -> dict[str, int]:
    """Of [blocks, block_size, kv_heads, dim], as the kernels name them."""
    return {f"stride_{name}{axis}": cached.stride(i) for i, axis in enumerate("bsh")}


def _contiguous_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
