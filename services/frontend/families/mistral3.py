"""Mistral 3: a picture keeps its shape, and each row of its tokens ends with a token of text.

Source of the semantics: transformers 5.23, `PixtralProcessor` and `PixtralImageProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
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
    special_token,
    token_text,
)
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

GRID_KEY = "image_grid_thw"
# What transformers' classes assume where the model directory is silent.
_IMAGE_ID, _PATCH, _MODEL_PATCH, _MERGE = 10, 16, 14, 2
_TOKENS = MappingProxyType({"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"})
_SIZE = MappingProxyType({"longest_edge": 1024})


class Mistral3(Family):
    """An extent's grid is (1, rows, columns) of tokens."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        if options.get("do_resize") is False:
            raise ConfigError(f"{info.path}: the image processor must resize (do_resize)")
        self._height, self._width = _most(info, options)
        self._factor = _factor(info)
        # transformers' `PixtralProcessor` says so for any options of the image processor.
        self._processor = {**processor_identity(info), "patch_size": self._factor}
        tokens = {**_TOKENS, **info.processor_config}
        self._break = special_token(tokenizer, tokens["image_break_token"])
        end = special_token(tokenizer, tokens["image_end_token"])
        pad_id = _image_id(info.config)
        pad = token_text(tokenizer, pad_id)
        self.placeholders = {"image": Placeholder(pad, pad + end, pad, pad_id, pad, behind=end)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        ratio = max(height / self._height, width / self._width, 1)
        if ratio > 1:
            height, width = int(height / ratio), int(width / ratio)
        if not height or not width:
            raise refused("the picture is too long and narrow")
        return self._extent(-(-height // self._factor), -(-width // self._factor))

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        t, rows, columns = grid_in(metadata, GRID_KEY)
        most = -(-self._height // self._factor), -(-self._width // self._factor)
        if t != 1 or rows > most[0] or columns > most[1]:
            raise refused(f"{GRID_KEY} {[t, rows, columns]} is not the grid of a picture")
        return self._extent(rows, columns)

    def _extent(self, rows: int, columns: int) -> Extent:
        before = ("", *[self._break] * (rows - 1))
        return Extent(rows * columns, (1, rows, columns), before=before)


def _image_id(config: Mapping[str, Any]) -> int:
    return int(config.get("image_token_id", config.get("image_token_index", _IMAGE_ID)))


def _most(info: ModelInfo, options: Mapping[str, Any]) -> tuple[int, int]:
    """(height, width) in pixels that no picture exceeds."""
    size = options.get("size") or _SIZE
    if edge := size.get("longest_edge"):
        return int(edge), int(edge)
    if not {"height", "width"} <= set(size):
        raise ConfigError(f"{info.path}: the image processor's size has no longest_edge")
    return int(size["height"]), int(size["width"])


def _factor(info: ModelInfo) -> int:
    """Pixels a side of a token: the processor's number, which must be the model's."""
    written, config = info.processor_config, info.config
    cut = int(written.get("patch_size", _PATCH)) * int(written.get("spatial_merge_size", 1))
    patch = config.get("vision_config", {}).get("patch_size", _MODEL_PATCH)
    made = int(patch) * int(config.get("spatial_merge_size", _MERGE))
    if made != cut:
        raise ConfigError(
            f"{info.path}: a token has {cut} pixels a side by processor_config.json, but the model"
            f" makes one of {made}"
        )
    return made
