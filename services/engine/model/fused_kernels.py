"""Triton kernels for what lies between a layer's matrix products, one in the place of several
operations. Each rounds where PyTorch's operations round, so that bfloat16 gives the same values.

Tested in Triton's interpreter, compiled for GPUs that are not there, and on an H100.
"""

# Triton gives its kernels' pointers and scalars no static types; only constants are annotated.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from services.engine.attention.triton_kv_codes import encode, encode_row, magnitude_bits, scale_of


@triton.jit
def norm_kernel(
    out_ptr, sum_ptr, x_ptr, residual_ptr, weight_ptr, stride_xt, stride_xh, epsilon,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """RMSNorm (arXiv:1910.07467) of x, or of x + residual, which goes to sum. Grid (T * HEADS,).

    x [T, HEADS, WIDTH], its last dimension contiguous; out, sum, residual [T, HEADS, WIDTH]
    contiguous; weight [WIDTH]. residual_ptr and sum_ptr are both None or neither. PAD >= WIDTH.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PAD)
    live = column < WIDTH
    x_ptr += row // HEADS * stride_xt + row % HEADS * stride_xh
    x = tl.load(x_ptr + column, mask=live, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row * WIDTH + column, mask=live, other=0.0)
        total = (x + residual.to(tl.float32)).to(dtype)
        tl.store(sum_ptr + row * WIDTH + column, total, mask=live)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / WIDTH + epsilon)
    weight = tl.load(weight_ptr + column, mask=live, other=0.0).to(tl.float32)
    normed = (x * scale).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (weight * normed).to(dtype), mask=live)


@triton.jit
def silu_kernel(
    out_ptr, gate_ptr, up_ptr, stride_g, stride_u, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """silu(gate) * up. Grid (T, WIDTH / BLOCK, rounded up).

    gate and up [T, WIDTH] with rows `stride_g` and `stride_u` apart; out [T, WIDTH] contiguous.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < WIDTH
    gate = tl.load(gate_ptr + row * stride_g + column, mask=live, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * stride_u + column, mask=live, other=0.0).to(tl.float32)
    dtype = out_ptr.dtype.element_ty
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (active * up).to(dtype), mask=live)


@triton.jit
def heads_kernel(
    x_ptr, cos_ptr, sin_ptr, stride_t, stride_h, stride_ct, stride_st,
    HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, PAD_HALF: tl.constexpr,
):  # fmt: skip
    """Rotary positions (arXiv:2104.09864) in float32, rounded once, as vision towers have them.
    Grid (T, HEADS / TILE, rounded up).

    x [T, HEADS, DIM] is rotated where it is; cos and sin [T, DIM]. The last dimensions are
    contiguous. PAD_HALF >= DIM / 2.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE + tl.arange(0, TILE)
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, PAD_HALF)
    inside = column < HALF
    live = (head < HEADS)[:, None] & inside[None, :]
    places = x_ptr + token * stride_t + head[:, None] * stride_h + column[None, :]
    first = tl.load(places, mask=live, other=0.0).to(tl.float32)
    second = tl.load(places + HALF, mask=live, other=0.0).to(tl.float32)
    cos, sin = cos_ptr + token * stride_ct + column, sin_ptr + token * stride_st + column
    cos_first = tl.load(cos, mask=inside, other=0.0).to(tl.float32)[None, :]
    cos_second = tl.load(cos + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_first = tl.load(sin, mask=inside, other=0.0).to(tl.float32)[None, :]
    sin_second = tl.load(sin + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    dtype = x_ptr.dtype.element_ty
    tl.store(places, (first * cos_first - second * sin_first).to(dtype), mask=live)
    tl.store(places + HALF, (second * cos_second + first * sin_second).to(dtype), mask=live)


@triton.jit
def rotary_kernel(
    query_ptr, key_ptr, value_ptr, cos_ptr, sin_ptr, key_cache_ptr, value_cache_ptr,
    key_scale_ptr, value_scale_ptr,
    blocks_ptr, offsets_ptr, stride_qt, stride_qh, stride_nkt, stride_nkh, stride_nvt, stride_nvh,
    stride_ct, stride_st, stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_cb, stride_cs,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, V_DIM: tl.constexpr,
    PAD_HALF: tl.constexpr, PAD_V: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Rotary positions (arXiv:2104.09864), and the cache's write. Grid (T, HEADS + 2 * KV_HEADS).

    query [T, HEADS, DIM] is rotated where it is; key [T, KV_HEADS, DIM], rotated, and value
    [T, KV_HEADS, V_DIM] go to (blocks[t], offsets[t]) of caches [blocks, slots, KV_HEADS, *].
    Of a KIND, the caches are of codes, with scales [blocks, slots, KV_HEADS]. cos and sin [T, DIM],
    DIM even; int64[T] blocks and offsets. The last dimensions are contiguous.
    PAD_HALF >= DIM / 2, PAD_V >= V_DIM.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    block = tl.load(blocks_ptr + token).to(tl.int64)
    slot = tl.load(offsets_ptr + token).to(tl.int64)
    if head >= HEADS + KV_HEADS:
        kv_head = head - HEADS - KV_HEADS
        row = value_ptr + token * stride_nvt + kv_head * stride_nvh
        to = value_cache_ptr + block * stride_vb + slot * stride_vs + kv_head * stride_vh
        scale_place = block * stride_cb + slot * stride_cs + kv_head
        _store_value(to, value_scale_ptr, scale_place, row, KIND, V_DIM, PAD_V)
        return
    HALF: tl.constexpr = DIM // 2
    column = tl.arange(0, PAD_HALF)
    live = column < HALF
    kv_head = tl.maximum(head - HEADS, 0)
    if head < HEADS:
        row = query_ptr + token * stride_qt + head * stride_qh
    else:
        row = key_ptr + token * stride_nkt + kv_head * stride_nkh
    dtype = query_ptr.dtype.element_ty
    first = tl.load(row + column, mask=live, other=0.0).to(tl.float32)
    second = tl.load(row + HALF + column, mask=live, other=0.0).to(tl.float32)
    cos, sin = cos_ptr + token * stride_ct + column, sin_ptr + token * stride_st + column
    cos_first = tl.load(cos, mask=live, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + HALF, mask=live, other=0.0).to(tl.float32)
    sin_first = tl.load(sin, mask=live, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + HALF, mask=live, other=0.0).to(tl.float32)
    new_first = _rounded(first * cos_first, dtype) - _rounded(second * sin_first, dtype)
    new_second = _rounded(second * cos_second, dtype) + _rounded(first * sin_second, dtype)
    new_first, new_second = _rounded(new_first, dtype), _rounded(new_second, dtype)
    if head < HEADS:
        _store_halves(row, new_first, new_second, HALF, PAD_HALF)
        return
    to = key_cache_ptr + block * stride_kb + slot * stride_ks + kv_head * stride_kh
    if KIND:
        scale_ptr = key_scale_ptr + block * stride_cb + slot * stride_cs + kv_head
        tops = tl.maximum(magnitude_bits(new_first), magnitude_bits(new_second))
        scale = scale_of(tl.max(tops, 0), KIND)
        tl.store(scale_ptr, scale.to(scale_ptr.dtype.element_ty))
        new_first, new_second = encode(new_first, scale, KIND), encode(new_second, scale, KIND)
    _store_halves(to, new_first, new_second, HALF, PAD_HALF)


@triton.jit
def _store_value(
    to_ptr, scales_ptr, scale_place, row_ptr,
    KIND: tl.constexpr, V_DIM: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """A value [V_DIM] as it is or, of a KIND, as codes with the scale at `scale_place`."""
    if KIND:
        encode_row(to_ptr, scales_ptr + scale_place, row_ptr, KIND, V_DIM, PAD_V)
    else:
        column = tl.arange(0, PAD_V)
        live = column < V_DIM
        tl.store(to_ptr + column, tl.load(row_ptr + column, mask=live), mask=live)


@triton.jit
def _store_halves(to_ptr, first, second, HALF: tl.constexpr, PAD_HALF: tl.constexpr):
    """Both halves of a head, one behind the other."""
    column = tl.arange(0, PAD_HALF)
    live = column < HALF
    tl.store(to_ptr + column, first.to(to_ptr.dtype.element_ty), mask=live)
    tl.store(to_ptr + HALF + column, second.to(to_ptr.dtype.element_ty), mask=live)


@triton.jit
def _rounded(value, DTYPE: tl.constexpr):
    """As an operation of its own would have stored it."""
    return value.to(DTYPE).to(tl.float32)
