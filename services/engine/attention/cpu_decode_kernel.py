"""Attention of single tokens on a CPU, in bfloat16, that reads the KV blocks where they lie, of
bfloat16 or of codes.

PyTorch's attention has the blocks of every context copied into one tensor first, and repacks the
keys after that: a step reads and writes its KV three times. Here each is read once. Compiled by
Numba, which needs no compiler on the machine, for the shape of a model's heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import literally

from services.engine.attention.numba_bfloat16 import (
    BYTES,
    FIRST,
    LOG2_E,
    function,
    halves,
    inlined,
    integers,
    kernel,
    narrowed,
    next_item,
    number,
    power_of_two,
    prefetched,
    widened,
    words_of,
)
from services.engine.attention.numba_kv_codes import load_rows
from services.engine.attention.numba_vectors import (
    add_rows,
    address_of,
    dot_rows,
    highest_of,
    lanes_of,
)

_LINE = 64  # bytes that are read together
# Not infinity, which `fastmath` tells the compiler not to expect.
_LOWEST = np.float32(-3e38)
_FLOAT_BYTES = 4


@inlined
def _fetch_rows(rows: Any, step: Any, count: Any, size: Any) -> None:
    """Has the processor read rows, which are so many bytes long and begin `step` bytes apart: those
    of the block whose turn is next. Blocks lie anywhere, so it cannot foresee them, and waits for a
    sixth of the time."""
    for t in range(count):
        for at in range(0, size, _LINE):
            prefetched(rows + t * step + at)


@inlined
def _soften(scores: Any, first: Any, count: Any, top: Any) -> Any:
    """Scores become powers of two, relative to the top one; returns their sum."""
    total = np.float32(0.0)
    for t in range(first, first + count):
        weight = power_of_two(scores[t] - top)
        scores[t] = weight
        total += weight
    return total


@function(cache=True)
def _attend(
    heads: Any, k_dim: Any, v_dim: Any, block: Any, lanes: Any, kind: Any, bf16: Any,
    query: Any, pool: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any,
    size: Any, kv_heads: Any, table: Any, first: Any, context: Any, kv_head: Any, found: Any,
    sums: Any,
) -> None:  # fmt: skip
    """All queries of one KV head over one context: found float32[heads * v_dim], still to be
    divided by sums float32[heads]. The first row of arguments, named as those of `compile_kernel`,
    are compiled in as constants; bf16: 1 where the pool holds bfloat16, 0 where it holds codes.

    Numba keeps a compiled kernel only if this is the same function each time; inlined it takes an
    eighth longer where dimensions are 64."""
    literally(heads), literally(k_dim), literally(v_dim), literally(block)
    literally(lanes), literally(kind), literally(bf16)
    width = BYTES if kind == 0 else 1  # of an element
    tile = np.empty(block * max(k_dim, v_dim), np.float32)
    scores, kept = np.empty(heads * block, np.float32), np.empty(heads, np.float32)
    tops = np.full(heads, _LOWEST)
    query_at, tile_at, scores_at = address_of(query), address_of(tile), address_of(scores)
    kept_at, found_at = address_of(kept), address_of(found)
    at_key, at_value = (keys + kv_head * k_dim) * width, (values + kv_head * v_dim) * width
    last = (context + block - 1) // block
    for place in range(first // block, last):
        block_at = pool + table[place] * size * width
        if place + 1 < last:
            following = pool + table[place + 1] * size * width
            _fetch_rows(following + at_key, kv_heads * k_dim * width, block, k_dim * width)
            _fetch_rows(following + at_value, kv_heads * v_dim * width, block, v_dim * width)
        load_rows(
            kind, block_at + at_key, kv_heads * k_dim,
            block_at + BYTES * (key_scales + kv_head), kv_heads, block, k_dim, tile,
        )  # fmt: skip
        dot_rows(query_at, tile_at, scores_at, heads, k_dim, block, lanes)
        low, high = max(first - place * block, 0), min(context - place * block, block)
        for head in range(heads):
            at = head * block
            # What lies outside is not of this context, and maybe not even a number.
            scores[at : at + low] = _LOWEST
            scores[at + high : at + block] = _LOWEST
            top = highest_of(scores_at + at * _FLOAT_BYTES, tops[head], block, lanes)
            kept[head] = power_of_two(tops[head] - top)
            tops[head] = top
            sums[head] = sums[head] * kept[head] + _soften(scores, at, block, top)
        rows, step = block_at + at_value, kv_heads * v_dim * width
        if kind != 0:
            load_rows(
                kind, rows, kv_heads * v_dim, block_at + BYTES * (value_scales + kv_head),
                kv_heads, block, v_dim, tile,
            )  # fmt: skip
            rows, step = tile_at, v_dim * _FLOAT_BYTES
        # From low to high alone: outside may be NaN, which no weight, however small, hides.
        add_rows(
            scores_at, kept_at, rows, step, low, high, found_at, heads, v_dim, block, lanes,
            bf16,
        )  # fmt: skip


def compile_kernel(heads: int, k_dim: int, v_dim: int, block: int, kind: int = 0) -> Any:
    """For `heads` query heads to a KV head and blocks of `block` tokens; block and dimensions are
    multiples of 4. `kind`: of the codes in the pool, by `kv_codes.NUMBERS`; 0 for bfloat16.

    Its words: query [T, all heads, k_dim], bfloat16, and its step from token to token; out [T, all
    heads, v_dim], bfloat16; int64[R] tokens, where each request's is among T; pool [blocks, size];
    keys and values, where those of the layer begin in a block, in elements; key_scales and
    value_scales, where their scales do, in scales; size; kv_heads; tables int64[R, width]; width;
    contexts int64[R]; requests R; window, 0 for none; scale. Work is a KV head of a request.
    """
    lanes, bf16 = lanes_of(k_dim, v_dim, block), 1 if kind == 0 else 0

    @kernel()
    def decode(data: Any) -> None:
        words = words_of(data)[FIRST:]
        step, out, pool = words[1], halves(words[2]), words[4]
        tokens, tables, contexts = integers(words[3]), integers(words[11]), integers(words[13])
        keys, values, key_scales, value_scales = words[5], words[6], words[7], words[8]
        size, kv_heads, width, requests = words[9], words[10], words[12], words[14]
        window, scale = words[15], number(data, FIRST + 16) * LOG2_E
        scaled, found = np.empty(heads * k_dim, np.float32), np.empty(heads * v_dim, np.float32)
        sums = np.empty(heads, np.float32)
        item = next_item(data)
        while item >= 0:
            request, kv_head = item % requests, item // requests
            context = contexts[request]
            first = context - window if 0 < window < context else 0
            query = halves(words[0] + BYTES * (tokens[request] * step + kv_head * heads * k_dim))
            for d in range(heads * k_dim):
                scaled[d] = widened(query[d]) * scale
            found[:], sums[:] = np.float32(0.0), np.float32(0.0)
            table = tables[request * width : (request + 1) * width]
            _attend(
                heads, k_dim, v_dim, block, lanes, kind, bf16,
                scaled, pool, keys, values, key_scales, value_scales, size, kv_heads, table, first,
                context, kv_head, found, sums,
            )  # fmt: skip
            place = (tokens[request] * kv_heads + kv_head) * heads
            for head in range(heads):
                share = np.float32(1.0) / sums[head]
                for d in range(v_dim):
                    narrow = narrowed(found[head * v_dim + d] * share)
                    out[(place + head) * v_dim + d] = narrow
            item = next_item(data)

    return decode
