"""Qwen2-Audio: a window of 30 s is heard whole, shorter audio with silence behind it; a token is
40 ms.

Longer audio is refused, of which transformers' processor would drop all that is behind the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.encoder_cache import AUDIO_TOKENS_KEY
from protocol.errors import ConfigError, InvalidRequest
from protocol.types import Modality
from services.frontend.families.base import (
    Audio,
    Extent,
    Family,
    Placeholder,
    processor_identity,
    refused,
    token_text,
)
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

_CODE = "invalid_audio"
_TOKEN_ID = 151_646
# What transformers' feature extractor assumes where the model directory is silent.
_CLASS_DEFAULTS = MappingProxyType({"sampling_rate": 16_000, "chunk_length": 30, "hop_length": 160})
_POSITIONS = 1500
_BEGIN, _END = "<|audio_bos|>", "<|audio_eos|>"


class AudioWindow(Audio):
    """How many tokens audio becomes, in numbers alone. `rate`: samples a second; `most`: samples of
    the window; `hop`: from one column of the spectrum to the next."""

    def __init__(self, options: Mapping[str, Any], identity: dict[str, Any] | None = None) -> None:
        """`options` of the feature extractor; `identity`: all that stands for it in `mm_hash`."""

        def option(name: str) -> int:
            value = options.get(name)
            return int(_CLASS_DEFAULTS[name] if value is None else value)

        self.rate = option("sampling_rate")
        self.most = option("chunk_length") * self.rate
        self.most_seconds = self.most / self.rate
        self.hop = option("hop_length")
        self._identity = identity or {}

    @property
    def processor(self) -> dict[str, Any]:
        return self._identity

    @property
    def columns(self) -> int:
        """Of the window's spectrum."""
        return self.most // self.hop

    def measure(self, samples: int) -> Extent:
        if samples > self.most:
            raise refused(
                f"the audio lasts {samples / self.rate:.2f} s, this model hears"
                f" {self.most_seconds:g} s at most; send it in parts",
                _CODE,
            )
        if (length := self._tokens(-(-samples // self.hop))) < 1:
            raise refused("the audio is too short to be heard", _CODE)
        return Extent(length)

    def _tokens(self, columns: int) -> int:
        """transformers' `_get_feat_extract_output_lengths`: a convolution and a mean over two."""
        return ((columns - 1) // 2 - 1) // 2 + 1

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        length, most = metadata.get(AUDIO_TOKENS_KEY), self._tokens(self.columns)
        if type(length) is not int or not 0 < length <= most:
            raise InvalidRequest(f"{AUDIO_TOKENS_KEY} must be an integer from 1 to {most}")
        return Extent(length)


class Qwen2Audio(Family):
    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        if info.processor is None:
            raise ConfigError(f"{info.path}: an audio model needs preprocessor_config.json")
        self._processor = processor_identity(info)
        self._audio = AudioWindow(info.processor, self._processor)
        positions = info.config.get("audio_config", {}).get("max_source_positions", _POSITIONS)
        # The encoder's convolution makes one position of two columns.
        if self._audio.columns != 2 * positions:
            raise ConfigError(
                f"{info.path}: the feature extractor makes {self._audio.columns} columns, the model"
                f" hears {2 * positions}"
            )
        self.placeholders: dict[Modality, Placeholder] = {"audio": _placeholder(info, tokenizer)}

    @property
    def processor(self) -> dict[str, Any]:
        return self._processor

    @property
    def audio(self) -> Audio:
        return self._audio

    def measure_image(self, width: int, height: int, bounds: PixelBounds | None = None) -> Extent:
        raise InvalidRequest("this model takes no pictures")

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        raise InvalidRequest("this model takes no pictures")


def _placeholder(info: ModelInfo, tokenizer: Tokenizer) -> Placeholder:
    pad_id = info.config.get("audio_token_index", _TOKEN_ID)
    pad = token_text(tokenizer, pad_id)
    return Placeholder(pad, pad, pad, pad_id, inline=_BEGIN + pad + _END)
