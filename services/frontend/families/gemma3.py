"""Gemma 3: every picture is resized to one size and becomes a fixed number of tokens.

Pan-and-scan crops are off, as they are by default in transformers.
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

# What transformers' classes assume where the model directory is silent.
_TOKENS_PER_IMAGE = 256
_BEGIN_ID, _END_ID, _IMAGE_ID = 255_999, 256_000, 262_144


class Gemma3(Family):
    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        # For its error alone: the options do not change how many tokens there are.
        options_of(info)
        self._length = _tokens_per_image(info)
        self._processor = processor_identity(info)
        self.placeholders = {"image": _placeholder(info.config, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        return Extent(self._length)

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return Extent(self._length)


def _tokens_per_image(info: ModelInfo) -> int:
    """The processor's number, which must be the model's: it makes the embeddings."""
    made = int(info.config.get("mm_tokens_per_image", _TOKENS_PER_IMAGE))
    written = int(info.processor_config.get("image_seq_length", made))
    if made != written:
        raise ConfigError(
            f"{info.path}: image_seq_length is {written}, but mm_tokens_per_image is {made}"
        )
    return made


def _placeholder(config: Mapping[str, Any], tokenizer: Tokenizer) -> Placeholder:
    # Published under both names, by version of transformers.
    pad_id = config.get("image_token_id", config.get("image_token_index", _IMAGE_ID))
    pad = token_text(tokenizer, pad_id)
    begin = token_text(tokenizer, config.get("boi_token_index", _BEGIN_ID))
    end = token_text(tokenizer, config.get("eoi_token_index", _END_ID))
    return Placeholder(begin, f"\n\n{begin}{pad}{end}\n\n", pad, pad_id, inline=begin)
