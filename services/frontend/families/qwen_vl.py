"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL: as many tokens as a picture has patches, four patches a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.families.base import (
    Extent,
    Family,
    Placeholder,
    grid_in,
    options_of,
    processor_identity,
    refused,
    token_text,
)
from services.frontend.model_info import ModelInfo
from services.frontend.pixel_bounds import PixelBounds
from services.frontend.tokenizer import Tokenizer

GRID_KEY = "image_grid_thw"
MAX_ASPECT_RATIO = 200
# What transformers' classes assume where the model directory is silent.
_CLASS_DEFAULTS = MappingProxyType({"patch_size": 14, "merge_size": 2})
_CLASS_SIZE = MappingProxyType({"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
_CLASS_TOKENS = MappingProxyType(
    {"image_token_id": 151_655, "vision_start_token_id": 151_652, "vision_end_token_id": 151_653}
)


class QwenVL(Family):
    """`patch` and `merge`: pixels a side of a patch, patches a side of a token."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        self.patch = _option(options, "patch_size")
        self.merge = _option(options, "merge_size")
        self._bounds = _pixel_bounds(options)
        self._resizes = bool(options.get("do_resize", True))
        self._processor = processor_identity(info)
        self.placeholders = {"image": _placeholder(info, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    @property
    def bounds(self) -> PixelBounds | None:
        return self._bounds if self._resizes else None

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        if self._resizes:
            height, width = self._resized(height, width, bounds or self._bounds)
        factor = self.patch * self.merge
        if height % factor or width % factor:
            raise refused(f"the picture's sides must be multiples of {factor} pixels")
        return self._extent(1, height // self.patch, width // self.patch)

    def _resized(self, height: int, width: int, bounds: PixelBounds) -> tuple[int, int]:
        """transformers' `smart_resize`: multiples of the factor, area within bounds."""
        longer, shorter = max(height, width), min(height, width)
        if longer / shorter > MAX_ASPECT_RATIO:
            raise refused(
                f"the picture is {width}x{height}; its sides may differ {MAX_ASPECT_RATIO}-fold "
                "at most"
            )
        factor = self.patch * self.merge
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

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        t, h, w = grid_in(metadata, GRID_KEY)
        if t != 1 or h % self.merge or w % self.merge:
            raise InvalidRequest(f"{GRID_KEY} {[t, h, w]} is not the grid of a picture")
        return self._extent(t, h, w)

    def _extent(self, t: int, h: int, w: int) -> Extent:
        return Extent(t * h * w // self.merge**2, (t, h, w))


def _option(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name)
    return int(_CLASS_DEFAULTS[name] if value is None else value)


def _pixel_bounds(options: Mapping[str, Any]) -> PixelBounds:
    """The model's own; the older `min_pixels` and `max_pixels` win over `size`."""
    size = options.get("size")
    if not isinstance(size, Mapping):
        size = _CLASS_SIZE
    least = options.get("min_pixels") or size.get("shortest_edge")
    most = options.get("max_pixels") or size.get("longest_edge")
    if not least or not most:
        raise ConfigError("the image processor's size needs 'shortest_edge' and 'longest_edge'")
    return PixelBounds(least, most)


def _placeholder(info: ModelInfo, tokenizer: Tokenizer) -> Placeholder:
    ids = {**_CLASS_TOKENS, **info.config}
    pad = token_text(tokenizer, ids["image_token_id"])
    start = token_text(tokenizer, ids["vision_start_token_id"])
    end = token_text(tokenizer, ids["vision_end_token_id"])
    return Placeholder(pad, pad, pad, ids["image_token_id"], inline=start + pad + end)
