"""What lies between a layer's matrix products on a CPU, one pass in place of several operations.

Compiled by Numba for bfloat16 by its bits. Each rounds where PyTorch's operations round. Work is a
row, or a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    BYTES,
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
    row_of,
    widened,
    words_of,
)
from services.engine.attention.numba_kv_codes import store_row


@inlined
def _norm_row(out: Any, source: Any, weight: Any, width: Any, epsilon: Any) -> None:
    """RMSNorm (arXiv:1910.07467) of one row."""
    squares = np.float32(0.0)
    for c in range(width):
        value = widened(source[c])
        squares += value * value
    scale = np.float32(1.0) / np.sqrt(squares / np.float32(width) + epsilon)
    for c in range(width):
        normed = widened(narrowed(widened(source[c]) * scale))
        out[c] = narrowed(widened(weight[c]) * normed)


@kernel()
def norm(data: Any) -> None:
    """Words: out [rows, width], x, its step from row to row, weight [width], width, epsilon."""
    words = words_of(data)[FIRST:]
    weight, width, epsilon = halves(words[3]), words[4], number(data, FIRST + 5)
    row = next_item(data)
    while row >= 0:
        source = row_of(words[1], row, words[2])
        _norm_row(row_of(words[0], row, width), source, weight, width, epsilon)
        row = next_item(data)


@kernel()
def add_norm(data: Any) -> None:
    """As `norm` of x + residual, which goes to total; words 6 and 7: total, residual, as out."""
    words = words_of(data)[FIRST:]
    weight, width, epsilon = halves(words[3]), words[4], number(data, FIRST + 5)
    row = next_item(data)
    while row >= 0:
        x, residual = row_of(words[1], row, words[2]), row_of(words[7], row, width)
        total = row_of(words[6], row, width)
        for c in range(width):
            total[c] = narrowed(widened(x[c]) + widened(residual[c]))
        _norm_row(row_of(words[0], row, width), total, weight, width, epsilon)
        row = next_item(data)


@kernel()
def gate(data: Any) -> None:
    """out = silu(gate) * up. Words: out [rows, width], gate, its step from row to row, up, its
    step, width."""
    words = words_of(data)[FIRST:]
    width = words[5]
    row = next_item(data)
    while row >= 0:
        out = row_of(words[0], row, width)
        gates, ups = row_of(words[1], row, words[2]), row_of(words[3], row, words[4])
        for c in range(width):
            x = widened(gates[c])
            # e**-|x| for either sign of x: `power_of_two` takes no positive number.
            small = power_of_two(-abs(x) * LOG2_E)
            share = np.float32(1.0) / (np.float32(1.0) + small)
            active = widened(narrowed(x * (share if x >= 0 else small * share)))
            out[c] = narrowed(active * widened(ups[c]))
        row = next_item(data)


@inlined
def rotate_head(source: Any, to: Any, cos: Any, sin: Any, dim: Any) -> None:
    """Rotary positions (arXiv:2104.09864) of one head, which may be rotated where it is."""
    half = dim // 2
    for c in range(half):
        # Both are read before either is written, as `to` may be the source.
        first, second = widened(source[c]), widened(source[half + c])
        less = widened(narrowed(second * widened(sin[c])))
        more = widened(narrowed(first * widened(sin[half + c])))
        to[c] = narrowed(widened(narrowed(first * widened(cos[c]))) - less)
        to[half + c] = narrowed(widened(narrowed(second * widened(cos[half + c]))) + more)


@kernel()
def rotate(data: Any) -> None:
    """Rotates queries where they are; rotated keys, and values, go to the cache: token t to
    slots[t] of blocks[t].

    Words: query, its step from token to token, heads; key, its step; value, its step; kv_heads;
    cos, its step; sin, its step; dim; v_dim; pool; size of a block; where keys and values of the
    layer begin in it; blocks int64[T]; slots int64[T]. Heads of a token lie together.
    """
    words = words_of(data)[FIRST:]
    heads, kv_heads, dim, v_dim = words[2], words[7], words[12], words[13]
    blocks, slots = integers(words[18]), integers(words[19])
    token = next_item(data)
    while token >= 0:
        cos, sin = row_of(words[8], token, words[9]), row_of(words[10], token, words[11])
        query = words[0] + BYTES * token * words[1]
        for head in range(heads):
            one = row_of(query, head, dim)
            rotate_head(one, one, cos, sin, dim)
        block, first = words[14] + BYTES * blocks[token] * words[15], slots[token] * kv_heads
        keys, values = block + BYTES * words[16], block + BYTES * words[17]
        key, value = words[3] + BYTES * token * words[4], words[5] + BYTES * token * words[6]
        for head in range(kv_heads):
            rotate_head(row_of(key, head, dim), row_of(keys, first + head, dim), cos, sin, dim)
            source, to = row_of(value, head, v_dim), row_of(values, first + head, v_dim)
            for c in range(v_dim):
                to[c] = source[c]
        token = next_item(data)


def compile_rotate(kind: int) -> Any:
    """`rotate` for a cache of codes of a `kind`, by `kv_codes.NUMBERS`: keys and values are encoded
    on their way there.

    Its words: those of `rotate`, where the pool's elements are bytes; then where the scales of keys
    and of values of the layer begin in a block, in scales.
    """

    @kernel()
    def rotate(data: Any) -> None:
        words = words_of(data)[FIRST:]
        heads, kv_heads, dim, v_dim = words[2], words[7], words[12], words[13]
        blocks, slots = integers(words[18]), integers(words[19])
        # Keys are rotated aside: a scale, and so the first code, needs the whole row.
        turned = np.empty(dim, np.uint16)
        token = next_item(data)
        while token >= 0:
            cos, sin = row_of(words[8], token, words[9]), row_of(words[10], token, words[11])
            query = words[0] + BYTES * token * words[1]
            for head in range(heads):
                one = row_of(query, head, dim)
                rotate_head(one, one, cos, sin, dim)
            block = words[14] + blocks[token] * words[15]
            key, value = words[3] + BYTES * token * words[4], words[5] + BYTES * token * words[6]
            for head in range(kv_heads):
                row = slots[token] * kv_heads + head
                rotate_head(row_of(key, head, dim), turned, cos, sin, dim)
                at = block + words[16] + row * dim
                store_row(kind, turned, dim, at, row_of(block, words[20] + row, 1))
                at = block + words[17] + row * v_dim
                source, scale = row_of(value, head, v_dim), row_of(block, words[21] + row, 1)
                store_row(kind, source, v_dim, at, scale)
            token = next_item(data)

    return rotate
