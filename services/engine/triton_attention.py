"""Paged attention through Triton kernels: the backend used on CUDA.

Gives what the PyTorch path in `attention` gives, without gathering contexts into copies. Host lists
of the batch only size the grids; what is computed follows the batch's device tensors, so that a
captured CUDA graph stays right when those change in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from services.engine.batch import PagedBatch
from services.engine.triton_kernels import decode_kernel, merge_kernel, prefill_kernel, write_kernel
from services.engine.triton_tiles import LOG2E

MIN_TILE = 16
PROGRAMS_PER_PROCESSOR = 4


@dataclass(frozen=True)
class Tile:
    """Rows and keys of one program, and what it is compiled for."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Splits:
    """How decode cuts contexts: at most `count` a request, each a multiple of `keys` long."""

    count: int
    keys: int


@dataclass(frozen=True)
class _Call:
    """One layer's attention. out [T, heads, v_dim], query [heads, T, k_dim],
    key and value [blocks, block_size, kv_heads, dim], sinks [heads]."""

    out: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    batch: PagedBatch
    window: int
    scale: float
    softcap: float | None
    sinks: torch.Tensor | None

    @property
    def kv_heads(self) -> int:
        return self.key.shape[2]

    @property
    def group(self) -> int:
        return self.query.shape[0] // self.kv_heads

    def dims(self) -> dict[str, Any]:
        """Constants of every kernel that computes outputs."""
        v_dim = self.out.shape[-1]
        return {"V_DIM": v_dim, "PAD_V": _pad(v_dim), "WINDOW": self.window}

    def outputs(self) -> dict[str, Any]:
        return {
            "out_ptr": self.out,
            "starts_ptr": self.batch.starts_tensor,
            "contexts_ptr": self.batch.contexts_tensor,
            "stride_ot": self.out.stride(0),
            "stride_oh": self.out.stride(1),
        }

    def inputs(self) -> dict[str, Any]:
        """What the kernels that read the cache have in common."""
        k_dim = self.query.shape[-1]
        return {
            "query_ptr": self.query,
            "key_ptr": self.key,
            "value_ptr": self.value,
            "tables_ptr": self.batch.block_tables,
            "sinks_ptr": self.sinks,
            # With a softcap the kernel changes base after it, otherwise the scale does.
            "scale": self.scale if self.softcap is not None else self.scale * LOG2E.value,
            "table_width": self.batch.block_tables.stride(0),
            "stride_qt": self.query.stride(1),
            "stride_qh": self.query.stride(0),
            **_strides("k", self.key),
            **_strides("v", self.value),
            "GROUP": self.group,
            "K_DIM": k_dim,
            "PAD_K": _pad(k_dim),
            "BLOCK_SIZE": self.key.shape[1],
            "SOFTCAP": self.softcap,
        }


@dataclass(frozen=True)
class TritonAttention:
    """Attention backend of a device.

    programs: decode programs that keep the device busy
    min_split: keys below which a split is not worth its merge, a power of two
    max_splits: what one merge program can hold
    """

    programs: int
    min_split: int = 128
    max_splits: int = 64

    @staticmethod
    def for_device(device: torch.device) -> TritonAttention:
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        return TritonAttention(processors * PROGRAMS_PER_PROCESSOR)

    def write(self, key: torch.Tensor, value: torch.Tensor, layer: int, batch: PagedBatch) -> None:
        """Store [kv_heads, T, dim] keys and values in the batch's slots.

        One launch, where indexing takes two and runs no longer than it takes to launch them.
        """
        key, value = _contiguous_rows(key), _contiguous_rows(value)
        kv_heads, tokens, k_dim = key.shape
        v_dim = value.shape[-1]
        arguments = {
            "key_cache_ptr": batch.cache.key(layer),
            "value_cache_ptr": batch.cache.value(layer),
            "key_ptr": key,
            "value_ptr": value,
            "blocks_ptr": batch.slot_blocks,
            "offsets_ptr": batch.slot_offsets,
            **_strides("k", batch.cache.key(layer)),
            **_strides("v", batch.cache.value(layer)),
            "stride_nkt": key.stride(1),
            "stride_nkh": key.stride(0),
            "stride_nvt": value.stride(1),
            "stride_nvh": value.stride(0),
            "KV_HEADS": kv_heads,
            "K_DIM": k_dim,
            "V_DIM": v_dim,
            "PAD_K": _pad(kv_heads * k_dim),
            "PAD_V": _pad(kv_heads * v_dim),
        }
        with torch.cuda.device_of(key):
            self.launch(write_kernel, (tokens,), **arguments)

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
        key, value = batch.cache.key(layer), batch.cache.value(layer)
        query = _contiguous_rows(query)
        out = query.new_empty(query.shape[1], query.shape[0], value.shape[-1])
        window = batch.cache.window(layer)
        call = _Call(out, query, key, value, batch, window, scale, softcap, sinks)
        # In the prefill kernel a single token would walk its whole context in one program.
        singles = batch.single_contexts if batch.decode_only or batch.span_starts is None else []
        with torch.cuda.device_of(query):
            if singles:
                self._decode(call, singles)
            if not batch.decode_only:
                self._prefill(call, skip_single=bool(singles))
        return out

    def splits(self, visible: Sequence[int], kv_heads: int) -> Splits:
        """Splits for requests that see `visible` keys each.

        Of one length for all requests, not of one number: a long context beside short ones must
        not be the work of few programs.
        """
        longest = max(visible)
        share = _ceil(sum(visible) * kv_heads, self.programs)
        keys = max(share, _ceil(longest, self.max_splits))
        keys = _ceil(keys, self.min_split) * self.min_split
        return Splits(_ceil(longest, keys), keys)

    def launch(self, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        """The one place where kernels start."""
        kernel[grid](**arguments)

    def _prefill(self, call: _Call, skip_single: bool) -> None:
        tile = prefill_tile(call.query, call.value, call.group)
        block_q = tile.rows // call.group
        batch = call.batch
        self.launch(
            prefill_kernel,
            (call.query.shape[1] // block_q + batch.num_requests, call.kv_heads),
            **call.dims(),
            **call.outputs(),
            **call.inputs(),
            span_starts_ptr=batch.span_starts,
            span_ends_ptr=batch.span_ends,
            num_requests=batch.num_requests,
            SKIP_SINGLE=skip_single,
            BLOCK_Q=block_q,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )

    def _decode(self, call: _Call, contexts: Sequence[int]) -> None:
        visible = [min(c, call.window) for c in contexts] if call.window else contexts
        splits = self.splits(visible, call.kv_heads)
        requests, heads = call.batch.num_requests, call.query.shape[0]
        shape = (requests, heads, splits.count)
        partials: dict[str, Any] = dict.fromkeys(("partial_ptr", "top_ptr", "total_ptr"))
        if splits.count > 1:
            empty = call.out.new_empty
            partials["partial_ptr"] = empty(*shape, call.out.shape[-1], dtype=torch.float32)
            partials["top_ptr"] = empty(shape, dtype=torch.float32)
            partials["total_ptr"] = empty(shape, dtype=torch.float32)
        common = {
            **call.dims(),
            **call.outputs(),
            **partials,
            "split_keys": splits.keys,
            "num_splits": splits.count,
        }
        tile = decode_tile(call.query, call.value, call.group)
        self.launch(
            decode_kernel,
            (requests, call.kv_heads, splits.count),
            **common,
            **call.inputs(),
            SPLIT=splits.count > 1,
            BLOCK_M=tile.rows,
            BLOCK_N=tile.keys,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        if splits.count > 1:
            pad = triton.next_power_of_2(splits.count)
            self.launch(merge_kernel, (requests, heads), **common, PAD_SPLITS=pad)


def prefill_tile(query: torch.Tensor, value: torch.Tensor, group: int) -> Tile:
    """The largest tile that compiles for sm_80 and sm_90 without spilling registers, in less
    shared memory than small devices have (99 KB)."""
    dim = max(_pad(query.shape[-1]), _pad(value.shape[-1]))
    if query.dtype == torch.float32:
        tile = Tile(32, 16, warps=8, stages=2)
    elif dim <= 128:
        tile = Tile(128, 64, warps=8, stages=3)
    else:
        tile = Tile(64, 32, warps=8, stages=3)
    return replace(tile, rows=max(tile.rows, _pad(group)))


def decode_tile(query: torch.Tensor, value: torch.Tensor, group: int) -> Tile:
    """Few rows, and loads kept in flight: of five stages the block numbers take two."""
    dim = max(_pad(query.shape[-1]), _pad(value.shape[-1]))
    if query.dtype == torch.float32:
        return Tile(_pad(group), 32, warps=8, stages=2)
    return Tile(_pad(group), 64 if dim <= 128 else 32, warps=4, stages=5)


def _strides(name: str, cached: torch.Tensor) -> dict[str, int]:
    """Of [blocks, block_size, kv_heads, dim], as the kernels name them."""
    return {f"stride_{name}{axis}": cached.stride(i) for i, axis in enumerate("bsh")}


def _contiguous_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _pad(size: int) -> int:
    return max(MIN_TILE, int(triton.next_power_of_2(size)))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
