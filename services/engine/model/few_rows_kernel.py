"""Products of a few rows with a weight in oneDNN's order, for processors with AVX512-BF16.

A step that decodes a few requests waits for the weights to be read. On two cores of a shared Zen 4
server, whose memory gives 35 to 60 GB/s, oneDNN reads them at 20 to 27 and this kernel at 25 to 45.
From about 16 rows on arithmetic takes longer than reading, and oneDNN is as fast.

Its order, `BA16a64b2a`: panels as `numba_products` reads them, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    BYTES,
    FIRST,
    halves,
    kernel,
    narrowed,
    next_item,
    row_of,
    widened,
    words_of,
)
from services.engine.attention.numba_products import MOST_ROWS, PANEL, multiply_rows
from services.engine.attention.numba_vectors import address_of

MOST = 12  # rows
_FLOAT_BYTES = 4


@kernel()
def few_rows(data: Any) -> None:
    """out = x Wᵀ + bias. Words: out [rows, outputs]; x [rows, width], its step from row to row; W;
    bias [outputs] or 0; rows, up to 12; outputs, a multiple of 64; width, even. Work is a panel."""
    words = words_of(data)[FIRST:]
    out, rows, outputs, width = halves(words[0]), words[5], words[6], words[7]
    step = words[2] * BYTES
    sums = np.empty(MOST * PANEL, np.float32)
    none = np.zeros(MOST_ROWS, np.float32)
    sums_at, none_at = address_of(sums), address_of(none)
    passes = (rows + MOST_ROWS - 1) // MOST_ROWS
    item = next_item(data)
    while item >= 0:
        panel, first = words[3] + item * PANEL * width * BYTES, 0
        for number in range(passes):  # the second finds the panel in a cache
            count = (rows - first) // (passes - number)
            x = words[1] + first * step
            to = sums_at + first * PANEL * _FLOAT_BYTES
            multiply_rows(x, step, panel, width // 2, to, none_at, count)
            first += count
        if words[4] != 0:
            bias = row_of(words[4], item, PANEL)
            for row in range(rows):
                for n in range(PANEL):
                    sums[row * PANEL + n] += widened(bias[n])
        for row in range(rows):
            for n in range(PANEL):
                out[row * outputs + item * PANEL + n] = narrowed(sums[row * PANEL + n])
        item = next_item(data)
