"""To which size Qwen's processors resize a picture, or a frame of a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from services.frontend.families.base import refused
from services.frontend.media.pixel_bounds import PixelBounds

MAX_ASPECT_RATIO = 200


def resized(
    height: int, width: int, factor: int, bounds: PixelBounds, noun: str, code: str
) -> tuple[int, int]:
    """transformers' `smart_resize`: (height, width) as multiples of the factor, area within bounds.
    `InvalidRequest` (`code`) if the `noun` is too long and narrow."""
    longer, shorter = max(height, width), min(height, width)
    # The original refuses it too: a side would become less than one patch.
    if longer / shorter > MAX_ASPECT_RATIO:
        raise refused(
            f"the {noun} is {width}x{height}; its sides may differ {MAX_ASPECT_RATIO}-fold at most",
            code,
        )
    # Python rounds halves to even, and so does the original.
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > bounds.most:
        beta = math.sqrt((height * width) / bounds.most)
        rows = max(factor, math.floor(height / beta / factor) * factor)
        columns = max(factor, math.floor(width / beta / factor) * factor)
    elif rows * columns < bounds.least:
        beta = math.sqrt(bounds.least / (height * width))
        rows = math.ceil(height * beta / factor) * factor
        columns = math.ceil(width * beta / factor) * factor
    return rows, columns


def pixel_bounds(options: Mapping[str, Any], usual: Mapping[str, int], noun: str) -> PixelBounds:
    """A processor's own; the older `min_pixels` and `max_pixels` win over `size`, and `usual` is
    the size of one that says none. `ConfigError` names the `noun`'s processor."""
    # Older processors have no size at all.
    size = options.get("size")
    if not isinstance(size, Mapping):
        size = usual
    least = options.get("min_pixels") or size.get("shortest_edge")
    most = options.get("max_pixels") or size.get("longest_edge")
    if not least or not most:
        raise ConfigError(f"the {noun} processor's size needs 'shortest_edge' and 'longest_edge'")
    return PixelBounds(number(least, "size", noun), number(most, "size", noun))


def number(value: Any, name: str, noun: str) -> int:
    """An option of the `noun`'s processor; `ConfigError` if it is no whole number above 0."""
    # type(), for True is an int.
    if type(value) not in (int, float) or value < 1 or value % 1:
        raise ConfigError(f"the {noun} processor's {name} must be a whole number, not {value!r}")
    return int(value)
