"""InternVL 3 as transformers has it: a picture is cut into tiles of one size, in the arrangement
that is nearest to its shape, and seen whole as one tile more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from services.frontend.families.base import (
    Extent,
    Family,
    Placeholder,
    named_token,
    options_of,
    processor_identity,
    size_in,
    special_token,
    token_text,
)
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

GRID_KEY = "image_grid_thw"
# What transformers' classes assume where the model directory is silent.
_IMAGE_ID, _TOKENS_PER_TILE = 151_667, 256
_LEAST_TILES, _MOST_TILES = 1, 12
_TILE = {"height": 384, "width": 384}
_BEGIN, _END = "<img>", "</img>"


class InternVL(Family):
    """An extent's grid is (1, height, width) of the picture itself, in pixels: the model has none,
    and this says all that the number of tokens follows from."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        tile = options.get("size") or _TILE
        if not {"height", "width"} <= set(tile):
            raise ConfigError(f"{info.path}: the image processor's size has no height and width")
        self._tile_area = int(tile["height"]) * int(tile["width"])
        least = int(options.get("min_patches") or _LEAST_TILES)
        most = int(options.get("max_patches") or _MOST_TILES)
        if least > most:
            raise ConfigError(f"{info.path}: min_patches {least} is more than max_patches {most}")
        self._arrangements = _arrangements(least, most)
        self._tokens_per_tile = _tokens_per_tile(info)
        # transformers' `InternVLProcessor` cuts for any options of the directory.
        self._processor = {**processor_identity(info), "crop_to_patches": True}
        self.placeholders = {"image": _placeholder(info, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        tiles = self._tiles(width, height)
        seen = tiles + 1 if tiles > 1 else 1
        return Extent(seen * self._tokens_per_tile, (1, height, width))

    def _tiles(self, width: int, height: int) -> int:
        """Of the arrangement nearest to the picture's shape; of several the last that does not
        have twice its pixels."""
        ratio, area = width / height, width * height
        best, nearest = 1, float("inf")
        for columns, rows in self._arrangements:
            apart = abs(ratio - columns / rows)
            filled = area > 0.5 * self._tile_area * columns * rows
            if apart < nearest or (apart == nearest and filled):
                best, nearest = columns * rows, apart
        return best

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        height, width = size_in(metadata, GRID_KEY)
        return self.measure_image(width, height)


def _arrangements(least: int, most: int) -> list[tuple[int, int]]:
    """(columns, rows) with so many tiles, fewer first."""
    sides = range(1, most + 1)
    found = [(columns, rows) for columns in sides for rows in sides]
    kept = [(columns, rows) for columns, rows in found if least <= columns * rows <= most]
    # Of equally many tiles their order decides: it is that of transformers' own list.
    return sorted(kept, key=lambda arrangement: arrangement[0] * arrangement[1])


def _tokens_per_tile(info: ModelInfo) -> int:
    """The processor's number, which must be the model's: it makes the embeddings."""
    vision = info.config.get("vision_config", {})
    side = _side(vision.get("image_size", 448)) // _side(vision.get("patch_size", 14))
    made = int(side * float(info.config.get("downsample_ratio", 0.5))) ** 2
    written = int(info.processor_config.get("image_seq_length", _TOKENS_PER_TILE))
    if made != written:
        raise ConfigError(
            f"{info.path}: image_seq_length is {written}, but the model makes {made} embeddings"
            " of a tile"
        )
    return made


def _side(size: int | list[int]) -> int:
    return int(size[0] if isinstance(size, list) else size)


def _placeholder(info: ModelInfo, tokenizer: Tokenizer) -> Placeholder:
    pad_id = info.config.get("image_token_id", _IMAGE_ID)
    pad = token_text(tokenizer, pad_id)
    begin = named_token(info, "start_image_token") or _BEGIN
    end = named_token(info, "end_image_token") or _END
    for token in (begin, end):
        special_token(tokenizer, token)
    return Placeholder(pad, f"{begin}{pad}{end}", pad, pad_id, inline=pad)
