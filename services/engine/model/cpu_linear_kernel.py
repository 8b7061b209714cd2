"""A matrix product that reads bfloat16 weights as they lie and computes in float32.

Four rows at a time by two outputs, so that eight sums hide how long an addition takes; a step of
1,024 inputs, so that the rows stay in the first cache while the weights pass. Work is 32 outputs.
Compiled by Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    FIRST,
    floats,
    function,
    halves,
    inlined,
    kernel,
    narrowed,
    next_item,
    prefetched,
    widened,
    words_of,
)

OUTPUTS = 32  # of a piece of work
_ROWS = 4
_INPUTS = 1024
_LINE = 64  # bytes that the processor reads at once
_AHEAD = 4  # outputs whose weights are asked for before they are used


@function(cache=True)
def _four_rows(x: Any, weight: Any, width: Any, count: Any, sums: Any, place: Any) -> None:
    """Add the products of four rows and two outputs over `count` inputs; rows and outputs are
    `width` apart."""
    # Slices that are read from their beginning, for vector instructions: see `row_of`.
    p, q = weight[:count], weight[width : width + count]
    x0, x1 = x[:count], x[width : width + count]
    x2, x3 = x[2 * width : 2 * width + count], x[3 * width : 3 * width + count]
    p0 = p1 = p2 = p3 = np.float32(0.0)
    q0 = q1 = q2 = q3 = np.float32(0.0)
    for i in range(count):
        v, w = widened(p[i]), widened(q[i])
        p0 += x0[i] * v
        q0 += x0[i] * w
        p1 += x1[i] * v
        q1 += x1[i] * w
        p2 += x2[i] * v
        q2 += x2[i] * w
        p3 += x3[i] * v
        q3 += x3[i] * w
    sums[place] += p0
    sums[place + 1] += q0
    sums[OUTPUTS + place] += p1
    sums[OUTPUTS + place + 1] += q1
    sums[2 * OUTPUTS + place] += p2
    sums[2 * OUTPUTS + place + 1] += q2
    sums[3 * OUTPUTS + place] += p3
    sums[3 * OUTPUTS + place + 1] += q3


@function(cache=True)
def _one_row(x: Any, weight: Any, width: Any, count: Any, sums: Any, place: Any) -> None:
    """As `_four_rows`, of one row and four outputs."""
    w0, w1 = weight[:count], weight[width : width + count]
    w2, w3 = weight[2 * width : 2 * width + count], weight[3 * width : 3 * width + count]
    s0 = s1 = s2 = s3 = np.float32(0.0)
    for i in range(count):
        value = x[i]
        s0 += value * widened(w0[i])
        s1 += value * widened(w1[i])
        s2 += value * widened(w2[i])
        s3 += value * widened(w3[i])
    sums[place] += s0
    sums[place + 1] += s1
    sums[place + 2] += s2
    sums[place + 3] += s3


@inlined
def _ask_for(weight: Any, output: Any, width: Any, begin: Any, count: Any) -> None:
    """The weights of two outputs."""
    for i in range(0, 2 * count, _LINE):
        prefetched(weight + 2 * (output * width + begin) + i)
        prefetched(weight + 2 * ((output + 1) * width + begin) + i)


@inlined
def _add_products(
    x: Any, at: Any, rows: Any, weight: Any, address: Any, first: Any, last: Any, width: Any,
    sums: Any,
) -> None:  # fmt: skip
    """Of so many rows of x from its element `at` on, with outputs first … last − 1. Their weights
    are in no cache yet while `address`, theirs, is not 0."""
    for begin in range(0, width, _INPUTS):
        count = min(_INPUTS, width - begin)
        some = x[at + begin : at + rows * width]
        for output in range(first, last, 2 if rows == _ROWS else 4):
            theirs = weight[output * width + begin :]
            if rows == _ROWS:
                if address:
                    _ask_for(address, output + _AHEAD, width, begin, count)
                _four_rows(some, theirs, width, count, sums, output - first)
            else:
                _one_row(some, theirs, width, count, sums, output - first)


@kernel()
def linear(data: Any) -> None:
    """Words: out [rows, outputs], bfloat16; x [rows, width], float32; weight [outputs, width],
    bfloat16; bias [outputs], bfloat16, or 0; rows; outputs, a multiple of 4; width."""
    words = words_of(data)[FIRST:]
    out, x, weight, bias = halves(words[0]), floats(words[1]), halves(words[2]), halves(words[3])
    rows, outputs, width = words[4], words[5], words[6]
    sums = np.empty(_ROWS * OUTPUTS, np.float32)
    item = next_item(data)
    while item >= 0:
        first, last = item * OUTPUTS, min(outputs, (item + 1) * OUTPUTS)
        row = 0
        while row < rows:
            count = _ROWS if row + _ROWS <= rows else 1
            sums[:] = np.float32(0.0)
            # The first rows bring the weights into a cache, where the others find them.
            address = words[2] if row == 0 else 0
            _add_products(x, row * width, count, weight, address, first, last, width, sums)
            for r in range(count):
                for output in range(first, last):
                    value = sums[r * OUTPUTS + output - first]
                    if words[3]:
                        value += widened(bias[output])
                    out[(row + r) * outputs + output] = narrowed(value)
            row += count
        item = next_item(data)
