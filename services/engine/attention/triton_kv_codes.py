"""Codes of keys and values (see `kv_codes`) in Triton kernels.

Codes of fp8 are made and read by their bits: devices before sm_89 have no such type, and the same
pool is read by every device.
"""

# Triton gives its kernels' pointers and scalars no static types; only constants are annotated.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from services.engine.attention.kv_codes import FP8, INT8, LARGEST, NUMBERS, SMALLEST_SCALE

_INT8 = tl.constexpr(NUMBERS[INT8])
_PER_INT8 = tl.constexpr(1.0 / LARGEST[NUMBERS[INT8]])
_PER_FP8 = tl.constexpr(1.0 / LARGEST[NUMBERS[FP8]])
_LEAST = tl.constexpr(SMALLEST_SCALE)
# Adding and subtracting it rounds a float32 of less than 2**22 to an integer, the even one of two.
_ROUNDING = tl.constexpr(1.5 * 2.0**23)


@triton.jit
def decode(codes, scales, KIND: tl.constexpr):
    """float32 of codes uint8[...], times scales of a shape that goes with theirs."""
    if KIND == _INT8:
        values = codes.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        size = (codes & 0x7F).to(tl.uint32)
        normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        magnitude = tl.where(size < 8, size.to(tl.float32) * (1.0 / 512.0), normal)
        values = tl.where(codes < 128, magnitude, -magnitude)
    return values * scales.to(tl.float32)


@triton.jit
def magnitude_bits(values):
    """int32 of float32: as integers magnitudes have their order, and NaN comes last."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scale_of(top_bits, KIND: tl.constexpr):
    """float32 with the value of a bfloat16: the scale of a row whose largest magnitude has these
    bits."""
    top = top_bits.to(tl.float32, bitcast=True)
    scale = top * (_PER_INT8 if KIND == _INT8 else _PER_FP8)
    bits = scale.to(tl.uint32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def encode(values, scale, KIND: tl.constexpr):
    """Codes uint8 of float32 values of a row, whose scale is a float32.

    The kernels that use it are compiled without fused multiply-add, which would not round `scaled`
    before it is made an integer: the same values must give the same codes on every device.
    """
    factor = tl.where(scale < _LEAST, 0.0, tl.div_rn(1.0, scale))
    scaled = values * factor
    if KIND == _INT8:
        rounded = (scaled + _ROUNDING) - _ROUNDING
        codes = rounded.to(tl.int32) & 0xFF
    else:
        bits = scaled.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = (((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)).to(tl.int32)
        small = ((tl.abs(scaled) * 512.0 + _ROUNDING) - _ROUNDING).to(tl.int32)
        code = tl.where(tl.abs(scaled) < 0.015625, small, tl.minimum(normal, 0x7E))
        codes = code | ((bits >> 24) & 0x80).to(tl.int32)
    return codes.to(tl.uint8)


@triton.jit
def encode_row(
    to_ptr, scale_ptr, row_ptr, KIND: tl.constexpr, DIM: tl.constexpr, PAD: tl.constexpr
):
    """Read a row of DIM elements, and store its codes and its scale."""
    column = tl.arange(0, PAD)
    live = column < DIM
    values = tl.load(row_ptr + column, mask=live, other=0.0).to(tl.float32)
    scale = scale_of(tl.max(magnitude_bits(values), 0), KIND)
    tl.store(to_ptr + column, encode(values, scale, KIND), mask=live)
    tl.store(scale_ptr, scale.to(scale_ptr.dtype.element_ty))


@triton.jit
def write_codes_kernel(
    key_cache_ptr, value_cache_ptr, key_scale_ptr, value_scale_ptr, key_ptr, value_ptr,
    blocks_ptr, offsets_ptr,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
    stride_nkt, stride_nkh, stride_nvt, stride_nvh,
    KIND: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Store the new key and value of a head of token t at (blocks[t], offsets[t]), as codes.
    Grid (T, kv_heads).

    key [T, kv_heads, K_DIM], value [T, kv_heads, V_DIM], blocks and offsets int64[T]; scales
    [blocks, slots, kv_heads], the last contiguous. PAD_K >= K_DIM, PAD_V >= V_DIM.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    block = tl.load(blocks_ptr + token).to(tl.int64)
    slot = tl.load(offsets_ptr + token).to(tl.int64)
    scale = block * stride_cb + slot * stride_cs + head
    encode_row(
        key_cache_ptr + block * stride_kb + slot * stride_ks + head * stride_kh,
        key_scale_ptr + scale, key_ptr + token * stride_nkt + head * stride_nkh,
        KIND, K_DIM, PAD_K,
    )  # fmt: skip
    encode_row(
        value_cache_ptr + block * stride_vb + slot * stride_vs + head * stride_vh,
        value_scale_ptr + scale, value_ptr + token * stride_nvt + head * stride_nvh,
        KIND, V_DIM, PAD_V,
    )  # fmt: skip
