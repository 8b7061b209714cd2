"""LLaVA 1.5: every picture is cropped to one size and becomes a fixed number of tokens.

The proxy uses this part; it must agree with transformers' `LlavaProcessor`, and needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from services.frontend.families.base import (
    Extent,
    Family,
    Placeholder,
    options_of,
    processor_identity,
    token_text,
)
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer


class Llava(Family):
    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        self._length = _tokens(info)
        self._processor = processor_identity(info)
        config = info.config
        pad_id = int(config.get("image_token_id") or config.get("image_token_index") or 32000)
        pad = token_text(tokenizer, pad_id)
        self.placeholders = {"image": Placeholder(pad, pad, pad, pad_id, inline=pad)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        return Extent(self._length)

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return Extent(self._length)


def _tokens(info: ModelInfo) -> int:
    """A token for each patch of the cropped picture, and one more if the class token is kept."""
    crop: dict[str, int] = options_of(info).get("crop_size", {"height": 336, "width": 336})
    patch = int(info.config.get("vision_config", {}).get("patch_size", 14))
    if crop["height"] % patch or crop["width"] % patch:
        raise ConfigError(f"{info.path}: crop_size is no multiple of patches of {patch} pixels")
    kept = bool(info.config.get("vision_feature_select_strategy", "default") == "full")
    return crop["height"] // patch * (crop["width"] // patch) + kept
