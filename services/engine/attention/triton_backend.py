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
from services.engine.attention.triton_call import Arguments, TritonCall, scale_arguments, strides_of
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
    decode_tile,
    pad,
    prefill_tile,
)


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
            **strides_of("k", cache.key(layer)),
            **strides_of("v", cache.value(layer)),
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
                arguments |= {**scale_arguments(cache, layer), "enable_fp_fusion": False}
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
        call = TritonCall(out, query, layer, batch, scale, softcap, sinks)
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

    def _prefill(self, call: TritonCall, skip_single: bool) -> None:
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

    def _decode(self, call: TritonCall, contexts: Sequence[int]) -> None:
        splits = self._splits(call, contexts)
        # All requests of the step: programs of those that bring more tokens end at once.
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

    def _splits(self, call: TritonCall, contexts: Sequence[int]) -> Splits:
        visible = [min(c, call.window) for c in contexts] if call.window else contexts
        plan = self.plan.captured if self.captured else self.plan.eager
        return plan(visible, call.kv_heads)


def _contiguous_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
