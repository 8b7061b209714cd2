"""Rotary positions, computed from the media items of a prompt and never from its token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidRequest
from protocol.types import MMItem

Positions = NDArray[np.int64]


def text_positions(num_tokens: int) -> Positions:
    """int64[1, num_tokens]: each token's index."""
    return np.arange(num_tokens, dtype=np.int64)[None]


def mrope_positions(num_tokens: int, items: Sequence[MMItem], merge: int) -> tuple[Positions, int]:
    """Qwen2-VL's three-dimensional positions (arXiv:2409.12191 §2.1) of a prompt.

    Returns int64[3, num_tokens] (time, row, column) and `rope_delta`, which added to the index
    of a later token gives its position. `merge` patches a side become one token.
    """
    parts: list[Positions] = []
    done = position = 0
    for item in items:
        position += _append_text(parts, item.offset - done, position)
        time, rows, columns = _merged_grid(item, merge)
        parts.append(position + np.indices((time, rows, columns)).reshape(3, -1))
        position += max(rows, columns)
        done = item.end
    position += _append_text(parts, num_tokens - done, position)
    positions = np.concatenate(parts, axis=1)
    return positions, position - num_tokens


def _append_text(parts: list[Positions], length: int, start: int) -> int:
    parts.append(np.broadcast_to(np.arange(start, start + length, dtype=np.int64), (3, length)))
    return length


def _merged_grid(item: MMItem, merge: int) -> tuple[int, int, int]:
    if len(item.grid) != 3:
        raise InvalidRequest(
            f"media item {item.mm_hash[:16]} needs a (t, h, w) grid", param="features"
        )
    time, height, width = item.grid
    rows, columns = height // merge, width // merge
    if time * rows * columns != item.length:
        raise InvalidRequest(
            f"media item {item.mm_hash[:16]}: grid {item.grid} makes {time * rows * columns} "
            f"tokens, its span has {item.length}",
            param="features",
        )
    return time, rows, columns
