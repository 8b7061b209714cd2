"""Attention of single tokens on a CPU, in bfloat16, that reads the KV blocks where they lie, of
bfloat16 or of codes.

PyTorch's attention has the blocks of every context copied into one tensor first, and repacks the
keys after that: a step reads and writes its KV three times. Here each is read once. Compiled by
Numba, which needs no compiler on the machine, for the shape of a model's heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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

_LINE = 64  # bytes that are read together
_LOWEST = np.float32(-3e38)


@inlined
def _fetch_rows(rows: Any, step: Any, count: Any, size: Any) -> None:
    """Has the processor read rows, which are so many bytes long and begin `step` bytes apart: those
    of the block whose turn is next. Blocks lie anywhere, so it cannot foresee them, and waits for a
    sixth of the time."""
    for t in range(count):
        for at in range(0, size, _LINE):
            prefetched(rows + t * step + at)


@inlined
def _clear(tile: Any, begin: Any, end: Any, count: Any) -> None:
    """What lies before `begin` and from `end` on, of `count`: not of this context, and maybe not
    even a number."""
    if begin > 0:
        tile[:begin] = np.float32(0.0)
    if end < count:
        tile[end:] = np.float32(0.0)


@inlined
def _score(query: Any, key: Any, head: Any, count: Any, dim: Any, scores: Any) -> None:
    for t in range(count):
        score = np.float32(0.0)
        for d in range(dim):
            score += query[head * dim + d] * key[t * dim + d]
        scores[t] = score


@inlined
def _soften(scores: Any, count: Any, top: Any) -> Any:
    """Scores become powers of two, relative to the top one; returns their sum."""
    for t in range(count):
        scores[t] = power_of_two(scores[t] - top)
    total = np.float32(0.0)
    for t in range(count):
        total += scores[t]
    return total


@inlined
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


def _attend_for(heads: int, k_dim: int, v_dim: int, block: int, kind: int) -> Any:
    """All query heads of one KV head over one context; the numbers as of `compile_kernel`."""

    width = BYTES if kind == 0 else 1  # of an element

    @function(cache=True)
    def attend(
        query: Any, pool: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any,
        size: Any, kv_heads: Any, table: Any, first: Any, context: Any, kv_head: Any, found: Any,
        sums: Any,
    ) -> None:  # fmt: skip
        """All queries of one KV head over one context: found float32[heads * v_dim], still to be
        divided by sums float32[heads]."""
        key, value = np.empty(block * k_dim, np.float32), np.empty(block * v_dim, np.float32)
        scores, tops = np.empty(block, np.float32), np.full(heads, _LOWEST)
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
                block_at + BYTES * (key_scales + kv_head), kv_heads, block, k_dim, key,
            )  # fmt: skip
            load_rows(
                kind, block_at + at_value, kv_heads * v_dim,
                block_at + BYTES * (value_scales + kv_head), kv_heads, block, v_dim, value,
            )  # fmt: skip
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
                kept = power_of_two(tops[head] - top)
                tops[head] = top
                sums[head] = sums[head] * kept + _soften(scores, block, top)
                _add(scores, value, head, block, v_dim, kept, found)

    return attend


def compile_kernel(heads: int, k_dim: int, v_dim: int, block: int, kind: int = 0) -> Any:
    """For `heads` query heads to a KV head and blocks of `block` tokens, a multiple of 4. `kind`:
    of the codes in the pool, by `kv_codes.NUMBERS`; 0 for bfloat16.

    Its words: query [T, all heads, k_dim] and out [T, all heads, v_dim], bfloat16; int64[R] tokens,
    where each request's is among T; pool [blocks, size]; keys and values, where those of the layer
    begin in a block, in elements; key_scales and value_scales, where their scales do, in scales;
    size; kv_heads; tables int64[R, width]; width; contexts int64[R]; requests R; window, 0 for
    none; scale. Work is a KV head of a request.
    """
    attend = _attend_for(heads, k_dim, v_dim, block, kind)

    # Numba would not find it again: to it the function that is called here is another each time.
    @kernel(cache=False)
    def decode(data: Any) -> None:
        words = words_of(data)[FIRST:]
        query, out, pool = halves(words[0]), halves(words[1]), words[3]
        tokens, tables, contexts = integers(words[2]), integers(words[10]), integers(words[12])
        keys, values, key_scales, value_scales = words[4], words[5], words[6], words[7]
        size, kv_heads = words[8], words[9]
        width, requests, window = words[11], words[13], words[14]
        scale = number(data, FIRST + 15) * LOG2_E
        scaled, found = np.empty(heads * k_dim, np.float32), np.empty(heads * v_dim, np.float32)
        sums = np.empty(heads, np.float32)
        item = next_item(data)
        while item >= 0:
            request, kv_head = item % requests, item // requests
            context = contexts[request]
            first = context - window if 0 < window < context else 0
            place = (tokens[request] * kv_heads + kv_head) * heads
            for d in range(heads * k_dim):
                scaled[d] = widened(query[place * k_dim + d]) * scale
            found[:], sums[:] = np.float32(0.0), np.float32(0.0)
            table = tables[request * width : (request + 1) * width]
            attend(
                scaled, pool, keys, values, key_scales, value_scales, size, kv_heads, table, first,
                context, kv_head, found, sums,
            )  # fmt: skip
            for head in range(heads):
                share = np.float32(1.0) / sums[head]
                for d in range(v_dim):
                    narrow = narrowed(found[head * v_dim + d] * share)
                    out[(place + head) * v_dim + d] = narrow
            item = next_item(data)

    return decode
