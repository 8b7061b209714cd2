"""What lies between a layer's matrix products on a CPU, one pass in place of several operations.

Compiled by Numba for bfloat16 by its bits. Each rounds where PyTorch's operations round. Work is a
row, or a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    FIRST,
    LOG2_E,
    halves,
    inlined,
    integers,
    kernel,
    narrowed,
    next_item,
    number,
    power_of_two,
    widened,
    words_of,
)


@inlined
def _norm_row(
    out: Any, source: Any, begin: Any, at: Any, weight: Any, width: Any, epsilon: Any
) -> None:
    """RMSNorm (arXiv:1910.07467) of source[begin :], to out[at :]."""
    squares = np.float32(0.0)
    for c in range(width):
        value = widened(source[begin + c])
        squares += value * value
    scale = np.float32(1.0) / np.sqrt(squares / np.float32(width) + epsilon)
    for c in range(width):
        normed = widened(narrowed(widened(source[begin + c]) * scale))
        out[at + c] = narrowed(widened(weight[c]) * normed)


@kernel()
def norm(data: Any) -> None:
    """Words: out [rows, width], x, its step from row to row, weight [width], width, epsilon."""
    words = words_of(data)[FIRST:]
    out, x, step = halves(words[0]), halves(words[1]), words[2]
    weight, width, epsilon = halves(words[3]), words[4], number(data, FIRST + 5)
    row = next_item(data)
    while row >= 0:
        _norm_row(out, x, row * step, row * width, weight, width, epsilon)
        row = next_item(data)


@kernel()
def add_norm(data: Any) -> None:
    """As `norm` of x + residual, which goes to total; words 6 and 7: total, residual, as out."""
    words = words_of(data)[FIRST:]
    out, x, step = halves(words[0]), halves(words[1]), words[2]
    weight, width, epsilon = halves(words[3]), words[4], number(data, FIRST + 5)
    total, residual = halves(words[6]), halves(words[7])
    row = next_item(data)
    while row >= 0:
        at = row * width
        for c in range(width):
            total[at + c] = narrowed(widened(x[row * step + c]) + widened(residual[at + c]))
        _norm_row(out, total, at, at, weight, width, epsilon)
        row = next_item(data)


@kernel()
def gate(data: Any) -> None:
    """out = silu(gate) * up. Words: out [rows, width], gate, its step from row to row, up, its
    step, width."""
    words = words_of(data)[FIRST:]
    out, gates, ups = halves(words[0]), halves(words[1]), halves(words[3])
    gate_step, up_step, width = words[2], words[4], words[5]
    row = next_item(data)
    while row >= 0:
        for c in range(width):
            x = widened(gates[row * gate_step + c])
            small = power_of_two(-abs(x) * LOG2_E)
            share = np.float32(1.0) / (np.float32(1.0) + small)
            active = widened(narrowed(x * (share if x >= 0 else small * share)))
            out[row * width + c] = narrowed(active * widened(ups[row * up_step + c]))
        row = next_item(data)


@inlined
def rotate_head(
    source: Any, begin: Any, to: Any, at: Any, cos: Any, cos_at: Any, sin: Any, sin_at: Any,
    dim: Any,
) -> None:  # fmt: skip
    """Rotary positions (arXiv:2104.09864) of one head, which may be rotated where it is."""
    half = dim // 2
    for c in range(half):
        first, second = widened(source[begin + c]), widened(source[begin + half + c])
        cos_first, cos_second = widened(cos[cos_at + c]), widened(cos[cos_at + half + c])
        sin_first, sin_second = widened(sin[sin_at + c]), widened(sin[sin_at + half + c])
        less = widened(narrowed(second * sin_first))
        more = widened(narrowed(first * sin_second))
        to[at + c] = narrowed(widened(narrowed(first * cos_first)) - less)
        to[at + half + c] = narrowed(widened(narrowed(second * cos_second)) + more)


@kernel()
def rotate(data: Any) -> None:
    """Rotates queries where they are; rotated keys, and values, go to the cache: token t to
    slots[t] of blocks[t].

    Words: query, its step from token to token, heads; key, its step; value, its step; kv_heads;
    cos, its step; sin, its step; dim; v_dim; pool; size of a block; where keys and values of the
    layer begin in it; blocks int64[T]; slots int64[T]. Heads of a token lie together.
    """
    words = words_of(data)[FIRST:]
    query, heads, key, value = halves(words[0]), words[2], halves(words[3]), halves(words[5])
    kv_heads, cos, sin = words[7], halves(words[8]), halves(words[10])
    dim, v_dim, pool, size = words[12], words[13], halves(words[14]), words[15]
    blocks, slots = integers(words[18]), integers(words[19])
    token = next_item(data)
    while token >= 0:
        cos_at, sin_at = token * words[9], token * words[11]
        for head in range(heads):
            begin = token * words[1] + head * dim
            rotate_head(query, begin, query, begin, cos, cos_at, sin, sin_at, dim)
        place = blocks[token] * size
        for head in range(kv_heads):
            at = place + words[16] + (slots[token] * kv_heads + head) * dim
            begin = token * words[4] + head * dim
            rotate_head(key, begin, pool, at, cos, cos_at, sin, sin_at, dim)
            at = place + words[17] + (slots[token] * kv_heads + head) * v_dim
            begin = token * words[6] + head * v_dim
            for c in range(v_dim):
                pool[at + c] = value[begin + c]
        token = next_item(data)
