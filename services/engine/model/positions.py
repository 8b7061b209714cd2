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


def mrope_positions(
    num_tokens: int, items: Sequence[MMItem], merge: int, per_second: float | None = None
) -> tuple[Positions, int]:
    """Qwen2-VL's three-dimensional positions (arXiv:2409.12191 §2.1) of a prompt.

    Returns int64[3, num_tokens] (time, row, column) and `rope_delta`, which added to the index
    of a later token gives its position. `merge` patches a side become one token.
    `per_second`: Qwen2.5-VL's positions in a second of a clip (arXiv:2502.13923 §2.1.2).

    What follows a clip begins behind its rows and columns, as in transformers 5.23, even where the
    clip is longer in time. Qwen3-VL's clips, whose t stand apart, are as many pictures.
    """
    parts: list[Positions] = []
    done = position = 0
    for item in items:
        time, rows, columns = _merged_grid(item, merge)
        together = 1 if item.gaps else time
        grid = np.indices((together, rows, columns)).reshape(3, -1)
        grid[0] = _times(item, together, per_second)[grid[0]]
        for first, last in item.runs:
            position += _append_text(parts, first - done, position)
            parts.append(position + grid)
            position += max(rows, columns)
            done = last
    position += _append_text(parts, num_tokens - done, position)
    positions = np.concatenate(parts, axis=1)
    return positions, position - num_tokens


def _append_text(parts: list[Positions], length: int, start: int) -> int:
    parts.append(np.broadcast_to(np.arange(start, start + length, dtype=np.int64), (3, length)))
    return length


def _times(item: MMItem, time: int, per_second: float | None) -> Positions:
    """int64[time]: by how much each of the grid's t lies behind the first; in float32, as
    transformers computes it."""
    if item.modality != "video" or per_second is None:
        return np.arange(time, dtype=np.int64)
    interval = np.float32(per_second) * np.float32(item.seconds_per_grid or 1.0)
    times: Positions = (np.arange(time, dtype=np.float32) * interval).astype(np.int64)
    return times


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
    if item.gaps and len(item.gaps) + 1 != time:
        raise InvalidRequest(
            f"media item {item.mm_hash[:16]}: grid {item.grid} needs {time - 1} gaps, not"
            f" {len(item.gaps)}",
            param="features",
        )
    return time, rows, columns
