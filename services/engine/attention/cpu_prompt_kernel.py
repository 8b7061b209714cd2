"""Attention of a prompt on a CPU with AVX512-BF16, in bfloat16, that reads the KV blocks where they
lie: scores are added up in float32 and never leave a core's cache (as in arXiv:2205.14135).

First keys and values are copied as panels of 64 tokens, in the order in which products read them,
then each head attends with six queries at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    BYTES,
    FIRST,
    LOG2_E,
    floats,
    halves,
    inlined,
    integers,
    kernel,
    narrowed,
    next_item,
    number,
    pairs_of,
    power_of_two,
    words_of,
)
from services.engine.attention.numba_products import MOST_ROWS, PANEL, multiply_rows
from services.engine.attention.numba_vectors import address_of, highest_of

_LOWEST = np.float32(-1e38)  # still a finite number times a scale of up to 2
_FLOAT_BYTES, _LANES = 4, 16
_HALF_BITS = np.uint32(16)


@inlined
def _copy_keys(rows: Any, count: Any, dim: Any, to: Any) -> None:
    """`count` keys, by their addresses, as a panel; the rest is 0."""
    panel = pairs_of(to)
    for t in range(count):
        source = pairs_of(rows[t])
        for c in range(dim // 2):
            panel[c * PANEL + t] = source[c]
    for t in range(count, PANEL):
        for c in range(dim // 2):
            panel[c * PANEL + t] = np.uint32(0)


@inlined
def _copy_values(rows: Any, count: Any, dim: Any, to: Any) -> None:
    """`count` values, by their addresses, as panels for 64 outputs each; the rest is 0."""
    for pair in range(PANEL // 2):
        for part in range(dim // PANEL):
            panel = pairs_of(to + (part * PANEL // 2 + pair) * PANEL * 2 * BYTES)
            if 2 * pair + 1 < count:
                one = halves(rows[2 * pair] + part * PANEL * BYTES)
                other = halves(rows[2 * pair + 1] + part * PANEL * BYTES)
                for d in range(PANEL):
                    panel[d] = np.uint32(one[d]) | (np.uint32(other[d]) << _HALF_BITS)
            elif 2 * pair < count:
                one = halves(rows[2 * pair] + part * PANEL * BYTES)
                for d in range(PANEL):
                    panel[d] = np.uint32(one[d])
            else:
                for d in range(PANEL):
                    panel[d] = np.uint32(0)


@kernel()
def pack(data: Any) -> None:
    """Copies a context's keys and values of a layer as panels. Words: panels [kv_heads, count,
    64 * (k_dim + v_dim)]; count; number of the first one; pool [blocks, size]; size; keys, values:
    where those of the layer begin in a block, in elements; kv_heads; k_dim; v_dim; tokens of a
    block; the context's blocks int64[…]; its tokens. Work is a panel of a head."""
    words = words_of(data)[FIRST:]
    count, first_panel, pool, size = words[1], words[2], words[3], words[4]
    kv_heads, k_dim, v_dim, block = words[7], words[8], words[9], words[10]
    table, context = integers(words[11]), words[12]
    keys, values = np.empty(PANEL, np.int64), np.empty(PANEL, np.int64)
    item = next_item(data)
    while item >= 0:
        head, first = item // count, (first_panel + item % count) * PANEL
        known = min(PANEL, context - first)
        for t in range(known):
            token = first + t
            at = pool + table[token // block] * size * BYTES
            row = token % block * kv_heads + head
            keys[t] = at + (words[5] + row * k_dim) * BYTES
            values[t] = at + (words[6] + row * v_dim) * BYTES
        to = words[0] + item * PANEL * (k_dim + v_dim) * BYTES
        _copy_keys(keys, known, k_dim, to)
        _copy_values(values, known, v_dim, to + PANEL * k_dim * BYTES)
        item = next_item(data)


@inlined
def _soften(scores: Any, top: Any, scale: Any, weights: Any) -> Any:
    """Of one row the weights, bfloat16[64], relative to the top score; returns their sum."""
    total = np.float32(0.0)
    for n in range(PANEL):
        weight = power_of_two((scores[n] - top) * scale)
        weights[n] = narrowed(weight)
        total += weight
    return total


@kernel()
def attend(data: Any) -> None:
    """Words: out [T, heads, v_dim]; query [T, heads, k_dim] and its step from token to token, in
    elements, all bfloat16; panels, their count and the first one's number, as of `pack`; T, the
    last tokens of the context; the context's tokens; heads; kv_heads; k_dim; v_dim, a multiple of
    64; window, 0 for none; scale. Work is six tokens of a head."""
    words = words_of(data)[FIRST:]
    out, step, count, first_panel = halves(words[0]), words[2], words[4], words[5]
    tokens, context, heads, kv_heads = words[6], words[7], words[8], words[9]
    k_dim, v_dim, window = words[10], words[11], words[12]
    scale = number(data, FIRST + 13) * LOG2_E
    parts, size = v_dim // PANEL, PANEL * (k_dim + v_dim) * BYTES
    scores, found = np.empty(MOST_ROWS * PANEL, np.float32), np.empty(MOST_ROWS * v_dim, np.float32)
    weights, none = np.empty(MOST_ROWS * PANEL, np.uint16), np.zeros(MOST_ROWS, np.float32)
    tops, sums = np.empty(MOST_ROWS, np.float32), np.empty(MOST_ROWS, np.float32)
    kept = np.empty(MOST_ROWS, np.float32)
    scores_at, found_at, weights_at = address_of(scores), address_of(found), address_of(weights)
    none_at, kept_at = address_of(none), address_of(kept)
    groups = (tokens + MOST_ROWS - 1) // MOST_ROWS
    item = next_item(data)
    while item >= 0:
        head, start = item // groups, item % groups * MOST_ROWS
        rows = min(MOST_ROWS, tokens - start)
        place = context - tokens + start  # of the first row's token
        begin = max(place - window + 1, 0) // PANEL if window > 0 else 0
        x = words[1] + (start * step + head * k_dim) * BYTES
        of_head = words[3] + (head // (heads // kv_heads) * count - first_panel) * size
        found[:], sums[:], tops[:] = np.float32(0.0), np.float32(0.0), _LOWEST
        for panel in range(begin, (place + rows - 1) // PANEL + 1):
            at = of_head + panel * size
            multiply_rows(x, step * BYTES, at, k_dim // 2, scores_at, none_at, rows)
            for row in range(rows):
                here = place + row - panel * PANEL
                low = max(here - window + 1, 0) if window > 0 else 0
                line = scores_at + row * PANEL * _FLOAT_BYTES
                of_row = floats(line)
                for n in range(max(here + 1, 0), PANEL):
                    of_row[n] = _LOWEST
                # The window of a later row may begin in the next panel. Its weights are 1 then,
                # until the first score that counts multiplies them by 2**-126.
                for n in range(min(low, PANEL)):
                    of_row[n] = _LOWEST
                top = highest_of(line, tops[row], PANEL, _LANES)
                kept[row] = power_of_two((tops[row] - top) * scale)
                tops[row] = top
                total = _soften(of_row, top, scale, halves(weights_at + row * PANEL * BYTES))
                sums[row] = sums[row] * kept[row] + total
            for part in range(parts):
                values = at + PANEL * (k_dim + part * PANEL) * BYTES
                to = found_at + part * MOST_ROWS * PANEL * _FLOAT_BYTES
                multiply_rows(weights_at, PANEL * BYTES, values, PANEL // 2, to, kept_at, rows)
        for row in range(rows):
            share = np.float32(1.0) / sums[row]
            for part in range(parts):
                to = ((start + row) * heads + head) * v_dim + part * PANEL
                of_part = floats(found_at + (part * MOST_ROWS + row) * PANEL * _FLOAT_BYTES)
                for d in range(PANEL):
                    out[to + d] = narrowed(of_part[d] * share)
        item = next_item(data)
