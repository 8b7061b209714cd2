"""A kernel that shows whether kernels run."""

from __future__ import annotations

from typing import Any

from services.engine.attention.numba_bfloat16 import FIRST, integers, kernel, next_item, words_of


@kernel()
def count_up(data: Any) -> None:
    """numbers[i] = i"""
    numbers = integers(words_of(data)[FIRST])
    item = next_item(data)
    while item >= 0:
        numbers[item] = item
        item = next_item(data)
