"""Gemma 4: a picture keeps its shape, and becomes about as many tokens as any other.

Source of the semantics: transformers 5.23, `Gemma4Processor` and `Gemma4ImageProcessor`. Clips and
audio are refused, and models whose layers take embeddings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
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
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

GRID_KEY = "image_grid_thw"
# What transformers' classes assume where the model directory is silent.
_BEGIN_ID, _END_ID, _IMAGE_ID = 255_999, 258_882, 258_880
_MOST_TOKENS, _PATCH, _POOLED, _PER_LAYER = 280, 16, 3, 256


class Gemma4(Family):
    """An extent's grid is (1, rows, columns) of tokens."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        _refuse_per_layer(info)
        if options.get("do_resize") is False:
            raise ConfigError(f"{info.path}: the image processor must resize (do_resize)")
        self._most = int(options.get("max_soft_tokens") or _MOST_TOKENS)
        self._side = _side(info, options)
        self._processor = processor_identity(info)
        self.placeholders = {"image": _placeholder(info.config, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        scale = math.sqrt(self._most * self._side**2 / (height * width))
        rows, columns = int(scale * height / self._side), int(scale * width / self._side)
        if not rows and not columns:
            raise refused("the picture is too small")
        if not rows:
            rows, columns = 1, min(width // height, self._most)
        elif not columns:
            rows, columns = min(height // width, self._most), 1
        return self._extent(rows, columns)

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        t, rows, columns = grid_in(metadata, GRID_KEY)
        if t != 1 or rows * columns > self._most:
            raise refused(f"{GRID_KEY} {[t, rows, columns]} is not the grid of a picture")
        return self._extent(rows, columns)

    def _extent(self, rows: int, columns: int) -> Extent:
        return Extent(rows * columns, (1, rows, columns))


def _refuse_per_layer(info: ModelInfo) -> None:
    text = info.config.get("text_config", {})
    if text.get("hidden_size_per_layer_input", _PER_LAYER):
        raise ConfigError(
            f"{info.path}: each of the model's layers takes embeddings of the token ids"
            " (hidden_size_per_layer_input), which is not supported"
        )


def _side(info: ModelInfo, options: Mapping[str, Any]) -> int:
    """Pixels a side of a token: the processor's number, which must be the model's."""
    vision = info.config.get("vision_config") or {}
    names = (("patch_size", _PATCH), ("pooling_kernel_size", _POOLED))
    for name, usual in names:
        written, made = options.get(name) or usual, vision.get(name, usual)
        if written != made:
            raise ConfigError(
                f"{info.path}: {name} of the image processor is {written}, but the model's {made}"
            )
    return math.prod(int(vision.get(name, usual)) for name, usual in names)


def _placeholder(config: Mapping[str, Any], tokenizer: Tokenizer) -> Placeholder:
    pad_id = int(config.get("image_token_id", _IMAGE_ID))
    pad = token_text(tokenizer, pad_id)
    begin = token_text(tokenizer, config.get("boi_token_id", _BEGIN_ID))
    end = token_text(tokenizer, config.get("eoi_token_id", _END_ID))
    return Placeholder(pad, begin + pad + end, pad, pad_id, inline=pad)
