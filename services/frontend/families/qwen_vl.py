"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL: as many tokens as a picture has patches, four patches a token.

Clips are as many pictures, or one with a longer t.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import Modality
from services.frontend.families.base import (
    Clips,
    Extent,
    Family,
    Placeholder,
    grid_in,
    options_of,
    processor_identity,
    refused,
    token_text,
)
from services.frontend.families.qwen_clips import QwenClips
from services.frontend.families.timed_clips import clips_of
from services.frontend.media.pixel_bounds import PixelBounds, model_bounds, resized
from services.frontend.model_info import ModelInfo, clip_processor
from services.frontend.tokenizer import Tokenizer

log = logging.getLogger(__name__)
GRID_KEY = "image_grid_thw"
# What transformers' classes assume where the model directory is silent.
_CLASS_DEFAULTS = MappingProxyType({"patch_size": 14, "merge_size": 2})
_CLASS_SIZE = MappingProxyType({"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
_CLASS_TOKENS = MappingProxyType(
    {
        "image_token_id": 151_655,
        "video_token_id": 151_656,
        "vision_start_token_id": 151_652,
        "vision_end_token_id": 151_653,
    }
)


class QwenVL(Family):
    """`patch` and `merge`: pixels a side of a patch, patches a side of a token."""

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        options = options_of(info)
        self.patch = _option(options, "patch_size")
        self.merge = _option(options, "merge_size")
        self._bounds = model_bounds(options, _CLASS_SIZE, "image")
        self._resizes = bool(options.get("do_resize", True))
        self._processor = processor_identity(info)
        self.placeholders: dict[Modality, Placeholder] = {
            "image": _placeholder(info, tokenizer, "image")
        }
        self._clips: QwenClips | None = None
        self._why_no_clips = ""
        pad_id = info.config.get("video_token_id", _CLASS_TOKENS["video_token_id"])
        if tokenizer.token(pad_id) is not None:
            self.placeholders["video"] = _placeholder(info, tokenizer, "video")
            try:
                self._clips = self._clips_of(info)
            except ConfigError as error:
                log.warning("clips are refused: %s", error)
                # Clients may read this, and where the model lies is not for them.
                self._why_no_clips = error.message.replace(f"{info.path}/", "")

    def _clips_of(self, info: ModelInfo) -> QwenClips:
        options = clip_processor(info.path) or {}
        return clips_of(info.model_type)(options, {**self._processor, "options": options})

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    @property
    def bounds(self) -> PixelBounds | None:
        return self._bounds if self._resizes else None

    @property
    def clips(self) -> Clips | None:
        return self._clips

    @property
    def why_no_clips(self) -> str:
        return self._why_no_clips

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        factor = self.patch * self.merge
        if self._resizes:
            wanted = bounds or self._bounds
            height, width = resized(height, width, factor, wanted, "picture", "invalid_image")
        if height % factor or width % factor:
            raise refused(f"the picture's sides must be multiples of {factor} pixels")
        return self._extent(1, height // self.patch, width // self.patch)

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


def _placeholder(info: ModelInfo, tokenizer: Tokenizer, modality: Modality) -> Placeholder:
    ids = {**_CLASS_TOKENS, **info.config}
    pad_id = ids[f"{modality}_token_id"]
    pad = token_text(tokenizer, pad_id)
    start = token_text(tokenizer, ids["vision_start_token_id"])
    end = token_text(tokenizer, ids["vision_end_token_id"])
    return Placeholder(pad, pad, pad, pad_id, inline=start + pad + end)
