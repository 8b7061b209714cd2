"""`cpu_kernels.rotate` for a cache of codes: keys and values are encoded on their way there."""

from __future__ import annotations

from typing import Any

import numpy as np

from services.engine.attention.numba_bfloat16 import (
    FIRST,
    halves,
    integers,
    kernel,
    next_item,
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
        query, heads, key, value = halves(words[0]), words[2], halves(words[3]), halves(words[5])
        kv_heads, cos, sin = words[7], halves(words[8]), halves(words[10])
        dim, v_dim, pool, size = words[12], words[13], words[14], words[15]
        blocks, slots = integers(words[18]), integers(words[19])
        turned = np.empty(dim, np.uint16)
        token = next_item(data)
        while token >= 0:
            cos_at, sin_at = token * words[9], token * words[11]
            for head in range(heads):
                begin = token * words[1] + head * dim
                rotate_head(query, begin, query, begin, cos, cos_at, sin, sin_at, dim)
            place = blocks[token] * size
            for head in range(kv_heads):
                row = slots[token] * kv_heads + head
                begin = token * words[4] + head * dim
                rotate_head(key, begin, turned, 0, cos, cos_at, sin, sin_at, dim)
                at, scale = place + words[16] + row * dim, place // 2 + row
                store_row(kind, turned, 0, dim, pool, at, scale + words[20])
                begin, at = token * words[6] + head * v_dim, place + words[17] + row * v_dim
                store_row(kind, value, begin, v_dim, pool, at, scale + words[21])
            token = next_item(data)

    return rotate
