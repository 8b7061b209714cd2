"""`cpu_kernels.rotate` for a cache of codes: keys and values are encoded on their way there."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    BYTES,
    FIRST,
    integers,
    kernel,
    next_item,
    row_of,
    words_of,
)
from services.engine.attention.numba_kv_codes import store_row
from services.engine.model.cpu_kernels import rotate_head


def compile_rotate(kind: int) -> Any:
    """For codes of a `kind`, by `kv_codes.NUMBERS`.

    Its words: those of `cpu_kernels.rotate`, where the pool's elements are bytes; then where the
    scales of keys and of values of the layer begin in a block, in scales.
    """

    @kernel()
    def rotate(data: Any) -> None:
        words = words_of(data)[FIRST:]
        heads, kv_heads, dim, v_dim = words[2], words[7], words[12], words[13]
        blocks, slots = integers(words[18]), integers(words[19])
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
