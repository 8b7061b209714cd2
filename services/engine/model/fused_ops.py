"""The fused kernels as functions of tensors."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.attention.batch import PagedBatch
from services.engine.attention.triton_call import scale_arguments
from services.engine.attention.triton_plan import ceil
from services.engine.model.fused_kernels import (
    heads_kernel,
    norm_kernel,
    rotary_kernel,
    silu_kernel,
)

_BLOCK = 2048  # elements of one program
_HEADS = 8  # of one program


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """[..., width] → [..., width], contiguous; rows of x may be parts of longer ones."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(out, None, x, None, weight, epsilon)
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and x + residual. All [..., width]; residual contiguous."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    _norm(out, total, x, residual, weight, epsilon)
    return out, total


def _norm(
    out: torch.Tensor,
    total: torch.Tensor | None,
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
) -> None:
    width = x.shape[-1]
    # Heads of a joint projection lie apart: as three dimensions they are read without a copy.
    heads = x if x.dim() == 3 else x.reshape(-1, 1, width)
    arguments = {
        "out_ptr": out,
        "sum_ptr": total,
        "x_ptr": heads,
        "residual_ptr": residual,
        "weight_ptr": weight,
        **_strides(heads, "xt", "xh"),
        "epsilon": epsilon,
        "HEADS": heads.shape[1],
        "WIDTH": width,
        "PAD": _power_of_two(width),
        "num_warps": 8 if width > 2048 else 4,
    }
    launch(norm_kernel, (heads.shape[0] * heads.shape[1],), arguments)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, contiguous; [T, width] both, whose rows may be parts of longer ones."""
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows, width = gate.shape
    arguments = {
        "out_ptr": out,
        "gate_ptr": gate,
        "up_ptr": up,
        "stride_g": gate.stride(0),
        "stride_u": up.stride(0),
        "WIDTH": width,
        "BLOCK": _BLOCK,
        "num_warps": 8,
    }
    launch(silu_kernel, (rows, ceil(width, _BLOCK)), arguments)
    return out


def add_product(x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """rows + x Wᵀ, in place of rows: the product adds to what stands there."""
    return rows.addmm_(x, weight.t())


def rotate_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, heads, dim] in place by cos and sin [T, dim], whose last dimension is contiguous
    as x's is."""
    tokens, heads, dim = x.shape
    arguments = {
        "x_ptr": x,
        "cos_ptr": cos,
        "sin_ptr": sin,
        **_strides(x, "t", "h"),
        **_strides(cos, "ct"),
        **_strides(sin, "st"),
        "HEADS": heads,
        "DIM": dim,
        "TILE": _HEADS,
        "PAD_HALF": _power_of_two(dim // 2),
        "num_warps": 4,
    }
    launch(heads_kernel, (tokens, ceil(heads, _HEADS)), arguments)


def rotate_and_write(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layer: int,
    batch: PagedBatch,
) -> None:
    """Rotate the query in place, and write the rotated key and the value to the batch's slots.

    query [T, heads, dim], key [T, kv_heads, dim], value [T, kv_heads, v_dim], cos and sin [T, dim];
    the last dimension of each is contiguous.
    """
    tokens, heads, dim = query.shape
    kv_heads, v_dim = value.shape[1:]
    keys, values = batch.cache.key(layer), batch.cache.value(layer)
    arguments = {
        "query_ptr": query,
        "key_ptr": key,
        "value_ptr": value,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "key_cache_ptr": keys,
        "value_cache_ptr": values,
        "blocks_ptr": batch.slot_blocks,
        "offsets_ptr": batch.slot_offsets,
        **_strides(query, "qt", "qh"),
        **_strides(key, "nkt", "nkh"),
        **_strides(value, "nvt", "nvh"),
        **_strides(cos, "ct"),
        **_strides(sin, "st"),
        **_strides(keys, "kb", "ks", "kh"),
        **_strides(values, "vb", "vs", "vh"),
        **scale_arguments(batch.cache, layer),
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "V_DIM": v_dim,
        "PAD_HALF": _power_of_two(dim // 2),
        "PAD_V": _power_of_two(v_dim),
        "num_warps": 1,
        "enable_fp_fusion": False,  # see `triton_kv_codes.encode`
    }
    launch(rotary_kernel, (tokens, heads + 2 * kv_heads), arguments)


def launch(kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """The one place where these kernels start."""
    first = next(value for value in arguments.values() if torch.is_tensor(value))
    # Triton launches on the current device, which need not be that of the tensors.
    with torch.cuda.device_of(first):
        kernel[grid](**arguments)


def _strides(tensor: torch.Tensor, *names: str) -> dict[str, int]:
    return {f"stride_{name}": tensor.stride(axis) for axis, name in enumerate(names)}


def _power_of_two(size: int) -> int:
    """The smallest one that is not less than `size`."""
    return 1 << (size - 1).bit_length()
