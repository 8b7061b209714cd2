"""Attention of single tokens on a CPU, in bfloat16, that reads the KV blocks where they lie.

PyTorch's attention has the blocks of every context copied into one tensor first, and repacks the
keys after that: a step reads and writes its KV three times. Here each is read once. Compiled by
Numba, which needs no compiler on the machine, for the shape of a model's heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

_LOWEST = np.float32(-3e38)
_LOG2_E = np.float32(1.4426950408889634)
_ROUNDED = 0x7FFF
# 2**f for 0 <= f < 1, the highest power first; relative error below 3e-7
_POWERS = tuple(
    np.float32(c)
    for c in (1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1)
)
Kernel = Callable[..., None]
_function = partial(njit, fastmath=True, nogil=True, boundscheck=False, error_model="numpy")
_compiled = _function(inline="always")


@intrinsic
def _widened(context: Any, bits: Any) -> Any:
    """The float32 of a bfloat16."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        moved = builder.shl(builder.zext(args[0], word), ir.Constant(word, 16))
        return builder.bitcast(moved, ir.FloatType())

    return types.float32(types.uint16), build


@intrinsic
def _of_bits(context: Any, bits: Any) -> Any:
    """The float32 that has these bits."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), build


@intrinsic
def _bits_of(context: Any, value: Any) -> Any:
    """The bits of a float32."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), build


@_compiled
def _power_of_two(x: Any) -> Any:
    """2**x for x <= 0, without a branch, so that many are computed at once."""
    x = max(x, np.float32(-126.0))
    whole = np.floor(x)
    rest = x - whole
    value = _POWERS[0]
    value = value * rest + _POWERS[1]
    value = value * rest + _POWERS[2]
    value = value * rest + _POWERS[3]
    value = value * rest + _POWERS[4]
    value = value * rest + _POWERS[5]
    return value * _of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@_compiled
def _narrowed(value: Any) -> Any:
    """The bfloat16 nearest to a float32, the even one of two."""
    bits = _bits_of(value)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(_ROUNDED) + odd) >> np.uint32(16))


@_compiled
def _widen_rows(pool: Any, start: Any, stride: Any, count: Any, dim: Any, tile: Any) -> None:
    """Rows of a block, `stride` elements apart, as float32 one behind the other."""
    for t in range(count):
        row = pool[start + t * stride : start + t * stride + dim]
        for d in range(dim):
            tile[t * dim + d] = _widened(row[d])


@_compiled
def _clear(tile: Any, begin: Any, end: Any, count: Any) -> None:
    """What lies before `begin` and from `end` on, of `count`: not of this context, and maybe not
    even a number."""
    if begin > 0:
        tile[:begin] = np.float32(0.0)
    if end < count:
        tile[end:] = np.float32(0.0)


@_compiled
def _score(query: Any, key: Any, head: Any, count: Any, dim: Any, scores: Any) -> None:
    for t in range(count):
        score = np.float32(0.0)
        for d in range(dim):
            score += query[head * dim + d] * key[t * dim + d]
        scores[t] = score


@_compiled
def _soften(scores: Any, count: Any, top: Any) -> Any:
    """Scores become powers of two, relative to the top one; returns their sum."""
    for t in range(count):
        scores[t] = _power_of_two(scores[t] - top)
    total = np.float32(0.0)
    for t in range(count):
        total += scores[t]
    return total


@_compiled
def _add(weights: Any, value: Any, head: Any, count: Any, dim: Any, kept: Any, found: Any) -> None:
    """What was found before counts `kept`; four rows at a time, so that it is read less often."""
    for d in range(dim):
        found[head * dim + d] *= kept
    for t in range(0, count, 4):
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for d in range(dim):
            found[head * dim + d] += (
                w0 * value[t * dim + d] + w1 * value[(t + 1) * dim + d]
                + w2 * value[(t + 2) * dim + d] + w3 * value[(t + 3) * dim + d]
            )  # fmt: skip


def compile_kernel(heads: int, k_dim: int, v_dim: int, block: int) -> Kernel:
    """For `heads` query heads to a KV head and blocks of `block` tokens, a multiple of 4.

    The kernel takes: query uint16[T * all heads * k_dim] and out uint16[T * all heads * v_dim],
    bfloat16 by their bits; tokens int64[R], where each request's token is among T; pool
    uint16[blocks * size]; keys and values, where those of the layer begin in a block; size;
    kv_heads; tables int64[R, B]; contexts int64[R]; window, 0 for none; scale float32.
    """

    @_function(cache=True)
    def attend(
        query: Any, pool: Any, keys: Any, values: Any, size: Any, kv_heads: Any, table: Any,
        first: Any, context: Any, kv_head: Any, found: Any, sums: Any,
    ) -> None:  # fmt: skip
        """All queries of one KV head over one context: found float32[heads * v_dim], still to be
        divided by sums float32[heads]."""
        key, value = np.empty(block * k_dim, np.float32), np.empty(block * v_dim, np.float32)
        scores, tops = np.empty(block, np.float32), np.full(heads, _LOWEST)
        for place in range(first // block, (context + block - 1) // block):
            begin = table[place] * size
            start = begin + keys + kv_head * k_dim
            _widen_rows(pool, start, kv_heads * k_dim, block, k_dim, key)
            start = begin + values + kv_head * v_dim
            _widen_rows(pool, start, kv_heads * v_dim, block, v_dim, value)
            low, high = first - place * block, context - place * block
            _clear(key, low * k_dim, high * k_dim, block * k_dim)
            _clear(value, low * v_dim, high * v_dim, block * v_dim)
            for head in range(heads):
                _score(query, key, head, block, k_dim, scores)
                if high < block:
                    scores[high:] = _LOWEST
                if low > 0:
                    scores[:low] = _LOWEST
                top = tops[head]
                for t in range(block):
                    top = max(top, scores[t])
                kept = _power_of_two(tops[head] - top)
                tops[head] = top
                sums[head] = sums[head] * kept + _soften(scores, block, top)
                _add(scores, value, head, block, v_dim, kept, found)

    @_function(cache=True, parallel=True)
    def decode(
        query: Any, out: Any, tokens: Any, pool: Any, keys: Any, values: Any, size: Any,
        kv_heads: Any, tables: Any, contexts: Any, window: Any, scale: Any,
    ) -> None:  # fmt: skip
        requests = len(tokens)
        for item in prange(requests * kv_heads):  # a thread gets some heads of all requests
            request, kv_head = item % requests, item // requests
            context = contexts[request]
            first = context - window if 0 < window < context else 0
            scaled = np.empty(heads * k_dim, np.float32)
            found, sums = np.zeros(heads * v_dim, np.float32), np.zeros(heads, np.float32)
            place = (tokens[request] * kv_heads + kv_head) * heads
            for d in range(heads * k_dim):
                scaled[d] = _widened(query[place * k_dim + d]) * (scale * _LOG2_E)
            attend(
                scaled, pool, keys, values, size, kv_heads, tables[request], first, context,
                kv_head, found, sums,
            )  # fmt: skip
            for head in range(heads):
                share = np.float32(1.0) / sums[head]
                for d in range(v_dim):
                    narrow = _narrowed(found[head * v_dim + d] * share)
                    out[(place + head) * v_dim + d] = narrow

    return decode  # type: ignore[no-any-return]
