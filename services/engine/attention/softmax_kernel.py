"""Softmax of scores under a causal mask on a CPU, one pass in place of four. Compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    FIRST,
    LOG2_E,
    floats,
    highest,
    inlined,
    kernel,
    narrowed,
    next_item,
    number,
    power_of_two,
    row_of,
    words_of,
)

ROWS = 8  # of one piece of work
_FLOAT_BYTES = 4


@inlined
def _powers(address: Any, count: Any, scale: Any) -> Any:
    """The scores from an address on become powers, relative to the largest; returns 1 / their sum.
    Loops that do one thing each are compiled to vector instructions."""
    scores, top, total = floats(address), highest(address, count), np.float32(0.0)
    for c in range(count):
        scores[c] = power_of_two((scores[c] - top) * scale)
    for c in range(count):
        total += scores[c]
    return np.float32(1.0) / total


@kernel()
def soften(data: Any) -> None:
    """Words: scores float32 [rows, keys], which become weights; rows; keys; how many rows are one
    head's queries, the last ones of the keys' tokens; scale, positive. Work is `ROWS` rows."""
    words = words_of(data)[FIRST:]
    rows, keys, queries, scale = words[1], words[2], words[3], number(data, FIRST + 4) * LOG2_E
    item = next_item(data)
    while item >= 0:
        for row in range(item * ROWS, min(rows, (item + 1) * ROWS)):
            address = words[0] + _FLOAT_BYTES * row * keys
            weights = floats(address)
            seen = keys - queries + row % queries + 1
            share = _powers(address, seen, scale)
            for c in range(seen):
                weights[c] *= share
            for c in range(seen, keys):
                weights[c] = np.float32(0.0)
        item = next_item(data)


@kernel()
def soften_to_bfloat16(data: Any) -> None:
    """As `soften`; the weights go to word 5, bfloat16 [rows, keys]."""
    words = words_of(data)[FIRST:]
    rows, keys, queries, scale = words[1], words[2], words[3], number(data, FIRST + 4) * LOG2_E
    item = next_item(data)
    while item >= 0:
        for row in range(item * ROWS, min(rows, (item + 1) * ROWS)):
            address = words[0] + _FLOAT_BYTES * row * keys
            scores, weights = floats(address), row_of(words[5], row, keys)
            seen = keys - queries + row % queries + 1
            share = _powers(address, seen, scale)
            for c in range(seen):
                weights[c] = narrowed(scores[c] * share)
            for c in range(seen, keys):
                weights[c] = 0
        item = next_item(data)
