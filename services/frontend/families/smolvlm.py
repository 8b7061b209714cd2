"""SmolVLM: a picture is cut into tiles of one size, each behind a text that says its place, and
seen whole as one tile more.

Source of the semantics: transformers 5.23, `SmolVLMProcessor` and `SmolVLMImageProcessor`.
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
_IMAGE_ID, _TOKENS_PER_TILE, _PATCH, _SCALE = 128_257, 169, 32, 2
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"
_SIZE, _TILE = MappingProxyType({"longest_edge": 1456}), MappingProxyType({"longest_edge": 364})
# transformers' MAX_IMAGE_SIZE.
_MOST_SIDE = 4096  # pixels, for any options


class SmolVLM(Family):
    """An extent's grid is (1, height, width) of the picture itself, in pixels: the model has none,
    and this says all that the number of tokens follows from."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        if options.get("do_resize") is False:
            raise ConfigError(f"{info.path}: the image processor must resize (do_resize)")
        self._size = _size(info, options)
        self._tile = int((options.get("max_image_size") or _TILE)["longest_edge"])
        self._splits = bool(options.get("do_image_splitting", True))
        self._tokens_per_tile = _tokens_per_tile(info, self._tile)
        self._processor = processor_identity(info)
        pad_id = info.config.get("image_token_id", _IMAGE_ID)
        pad = token_text(tokenizer, pad_id)
        self._around = special_token(tokenizer, named_token(info, "fake_image_token") or _AROUND)
        self._whole = self._around + (named_token(info, "global_image_token") or _WHOLE)
        text = self._whole + pad + self._around
        self.placeholders = {"image": Placeholder(pad, text, pad, pad_id, pad, behind=self._around)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        before = self._before(*self._tiles(width, height))
        return Extent(len(before) * self._tokens_per_tile, (1, height, width), before=before)

    def _before(self, rows: int, columns: int) -> tuple[str, ...]:
        """What stands before each tile, the one of the whole picture last."""
        before = [
            f"{self._line_break(row, column)}{self._around}<row_{row + 1}_col_{column + 1}>"
            for row in range(rows)
            for column in range(columns)
        ]
        return (*before, "\n\n" + self._whole if before else self._whole)

    def _line_break(self, row: int, column: int) -> str:
        return "\n" if row and not column else ""

    def _tiles(self, width: int, height: int) -> tuple[int, int]:
        """(rows, columns), both 0 for a picture that is only seen whole."""
        if not self._splits:
            return 0, 0
        height, width = self._resized(height, width)
        ratio = width / height
        if width >= height:
            width = self._filled(width)
            height = self._filled(int(width / ratio))
        else:
            height = self._filled(height)
            width = self._filled(int(height * ratio))
        rows, columns = height // self._tile, width // self._tile
        return (rows, columns) if rows > 1 or columns > 1 else (0, 0)

    def _filled(self, side: int) -> int:
        return -(-side // self._tile) * self._tile

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self._size, int):
            return self._size
        height, width = _scaled(height, width, self._size, even=True)
        if max(height, width) > _MOST_SIDE:
            height, width = _scaled(height, width, _MOST_SIDE, even=False)
        return height, width

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        height, width = size_in(metadata, GRID_KEY)
        return self.measure_image(width, height)


def _scaled(height: int, width: int, longest: int, *, even: bool) -> tuple[int, int]:
    """With the longer side as given; the other one made `even`, upwards."""
    ratio = width / height
    if width >= height:
        shorter = int(longest / ratio)
        return max(1, shorter + (even and shorter % 2)), longest
    shorter = int(longest * ratio)
    return longest, max(1, shorter + (even and shorter % 2))


def _size(info: ModelInfo, options: Mapping[str, Any]) -> int | tuple[int, int]:
    """The longest side of a picture that is cut, or its (height, width)."""
    size = options.get("size") or _SIZE
    if edge := size.get("longest_edge"):
        return int(edge)
    if not {"height", "width"} <= set(size):
        raise ConfigError(f"{info.path}: the image processor's size has no longest_edge")
    return int(size["height"]), int(size["width"])


def _tokens_per_tile(info: ModelInfo, tile: int) -> int:
    """The processor's number, which must be the model's: it makes the embeddings."""
    patch = int(info.config.get("vision_config", {}).get("patch_size", _PATCH))
    made = (tile // patch) ** 2 // int(info.config.get("scale_factor", _SCALE)) ** 2
    written = int(info.processor_config.get("image_seq_len", _TOKENS_PER_TILE))
    if made != written:
        raise ConfigError(
            f"{info.path}: image_seq_len is {written}, but the model makes {made} embeddings of a"
            " tile"
        )
    return made
