"""Codes of keys and values (see `kv_codes`) in kernels that Numba compiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.kv_codes import FP8, INT8, LARGEST, NUMBERS, SMALLEST_SCALE
from services.engine.attention.numba_bfloat16 import (
    bits_of,
    float_of,
    inlined,
    narrowed,
    octets,
    row_of,
    widened,
)

_INT8 = NUMBERS[INT8]
_PER_INT8, _PER_FP8 = (np.float32(1.0 / LARGEST[NUMBERS[name]]) for name in (INT8, FP8))
_LEAST = np.float32(SMALLEST_SCALE)
_MAGNITUDE = np.uint16(0x7FFF)  # bits of a bfloat16 without its sign
# e4m3 has 3 bits behind the point and exponents 120 less than float32's; below 2**-6 its steps are
# of 2**-9 each.
_STEPS, _STEP, _NORMAL = np.float32(512.0), np.float32(1 / 512), np.float32(1 / 64)


@inlined
def _of_fp8(code: Any) -> Any:
    size = np.int32(code & 0x7F)
    normal = float_of(np.int32((size << np.int32(20)) + np.int32(120 << 23)))
    magnitude = normal if size >= 8 else np.float32(size) * _STEP
    return -magnitude if code >= 128 else magnitude


@inlined
def _to_fp8(value: Any) -> Any:
    """The nearest, the even one of two; of |value| < 464."""
    bits = bits_of(value)
    size = bits & np.uint32(0x7FFFFFFF)
    odd = (size >> np.uint32(20)) & np.uint32(1)
    normal = np.int32((size + np.uint32(0x7FFFF) + odd) >> np.uint32(20)) - np.int32(120 << 3)
    small = np.int32(np.rint(abs(value) * _STEPS))
    code = small if abs(value) < _NORMAL else min(normal, np.int32(0x7E))
    return np.uint8(np.uint32(code) | ((bits >> np.uint32(24)) & np.uint32(0x80)))


@inlined
def _to_int8(value: Any) -> Any:
    return np.uint8(np.int32(np.rint(value)) & np.int32(0xFF))


@inlined
def load_rows(
    kind: Any, rows: Any, stride: Any, scales: Any, step: Any, count: Any, dim: Any, tile: Any
) -> None:
    """`count` rows of `dim` elements as float32 one behind the other in `tile`.

    rows: address of the first, and `stride` from row to row, in elements; scales: address of the
    first row's scale, and `step` from scale to scale, in scales; kind: a constant
    """
    if kind == 0:
        for t in range(count):
            row = row_of(rows, t, stride)
            for d in range(dim):
                tile[t * dim + d] = widened(row[d])
    else:
        for t in range(count):
            factor = widened(row_of(scales, t, step)[0])
            codes = octets(rows + t * stride)
            if kind == _INT8:
                for d in range(dim):
                    tile[t * dim + d] = np.float32(np.int8(codes[d])) * factor
            else:
                for d in range(dim):
                    tile[t * dim + d] = _of_fp8(codes[d]) * factor


@inlined
def store_row(kind: Any, source: Any, dim: Any, to: Any, scale: Any) -> None:
    """A row of bfloat16 as codes from the address `to` on; their scale becomes scale[0]. kind: a
    constant, not 0"""
    codes, top = octets(to), np.uint16(0)
    for c in range(dim):
        # As integers magnitudes have their order, and what is not a number comes last.
        top = max(top, np.uint16(source[c] & _MAGNITUDE))
    narrow = narrowed(widened(top) * (_PER_INT8 if kind == _INT8 else _PER_FP8))
    scale[0] = narrow
    exact = widened(narrow)
    factor = np.float32(0.0) if exact < _LEAST else np.float32(1.0) / exact
    for c in range(dim):
        value = widened(source[c]) * factor
        codes[c] = _to_int8(value) if kind == _INT8 else _to_fp8(value)
