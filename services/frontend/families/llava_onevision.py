"""LLaVA-OneVision: a picture is seen whole and in tiles; the tiles' padding makes no tokens.

Every picture is tiled, also where a prompt has several, so that its embedding depends on nothing
but itself (transformers' processor does the same when it is given a flat list of pictures).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import ConfigError
from services.frontend.families.base import (
    Extent,
    Family,
    Placeholder,
    options_of,
    processor_identity,
    size_in,
    token_text,
)
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

GRID_KEY = "image_grid_thw"
_IMAGE_ID = 151_646
_TILE_SIDES = range(384, 2305, 384)
_MAX_TILES_PREFIX = "anyres_max_"


class LlavaOnevision(Family):
    """An extent's grid is (1, height, width) of the picture itself, in pixels: the model has none,
    and this says all that the number of tokens follows from.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        vision = info.config.get("vision_config", {})
        self._tile_height, self._tile_width = _tile(options)
        self._resolutions = _resolutions(options)
        self._base = _tokens_per_tile(info, vision)
        self._max_tiles = _max_tiles(_setting(info, "vision_aspect_ratio", "anyres_max_9"))
        strategy = _setting(info, "vision_feature_select_strategy", "full")
        self._dropped = 1 if strategy == "default" else 0
        self._processor = processor_identity(info)
        self.placeholders = {"image": _placeholder(info.config, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        best_height, best_width = _best_resolution(height, width, self._resolutions)
        rows = best_height // self._tile_height
        columns = best_width // self._tile_width
        features = self._tile_features(height, width, rows, columns)
        return Extent(self._base + features - self._dropped, (1, height, width))

    def _tile_features(self, height: int, width: int, rows: int, columns: int) -> int:
        """Tokens of all tiles without padding, and one more at the end of each row."""
        side = math.isqrt(self._base)
        tall, wide = side * rows, side * columns
        if width / height > wide / tall:
            # Rounded before it is cut, as transformers does: 23.99999999 counts as 24.
            used = int(round(height * (wide / width), 7))
            tall -= (tall - used) // 2 * 2
        else:
            used = int(round(width * (tall / height), 7))
            wide -= (wide - used) // 2 * 2
        ratio = math.sqrt(tall * wide / (self._max_tiles * side**2))
        if ratio > 1.1:
            tall, wide = int(tall // ratio), int(wide // ratio)
        return tall * wide + tall

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        height, width = size_in(metadata, GRID_KEY)
        return self.measure_image(width, height)


def _best_resolution(
    height: int, width: int, resolutions: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The one that keeps most of the picture's pixels and, of these, wastes fewest of its own."""

    def key(resolution: tuple[int, int]) -> tuple[int, int]:
        scale = min(resolution[1] / width, resolution[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - resolution[0] * resolution[1]

    return max(resolutions, key=key)


def _tile(options: Mapping[str, Any]) -> tuple[int, int]:
    size = options.get("size") or {"height": _TILE_SIDES.start, "width": _TILE_SIDES.start}
    edge = size.get("shortest_edge")
    return (edge, edge) if edge else (size["height"], size["width"])


def _resolutions(options: Mapping[str, Any]) -> list[tuple[int, int]]:
    given = options.get("image_grid_pinpoints")
    if given is None:
        return [(height, width) for height in _TILE_SIDES for width in _TILE_SIDES]
    return [(height, width) for height, width in given]


def _setting(info: ModelInfo, name: str, default: str) -> str:
    return str(info.processor_config.get(name) or info.config.get(name) or default)


def _tokens_per_tile(info: ModelInfo, vision: Mapping[str, Any]) -> int:
    written = info.processor_config.get("num_image_tokens")
    if written is not None:
        return int(written)
    return int(vision.get("image_size", 384) // vision.get("patch_size", 14)) ** 2


def _max_tiles(aspect_ratio: str) -> int:
    """The 9 of "anyres_max_9"."""
    try:
        return int(aspect_ratio.removeprefix(_MAX_TILES_PREFIX))
    except ValueError:
        raise ConfigError(f"vision_aspect_ratio '{aspect_ratio}' is not supported") from None


def _placeholder(config: Mapping[str, Any], tokenizer: Tokenizer) -> Placeholder:
    pad_id = config.get("image_token_id", config.get("image_token_index", _IMAGE_ID))
    pad = token_text(tokenizer, pad_id)
    return Placeholder(pad, pad, pad, pad_id, inline=pad)
