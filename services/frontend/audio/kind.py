"""Audio as a kind of media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.frontend.audio.formats import refuse_other_formats
from services.frontend.audio.resampling import check_rate, resampled_length
from services.frontend.audio.wav import has_float_samples, read_header, read_samples
from services.frontend.families import Audio, Extent
from services.frontend.kinds import Kind, Wanted, naming

_DECODING = "mean of channels, kaiser_best"  # what samples depend on besides the bytes


class Sounds(Kind):
    noun = "audio item"

    def __init__(self, audio: Audio) -> None:
        self._audio = audio

    def wanted(self, kwargs: Mapping[str, Any], io: Mapping[str, Any]) -> Wanted:
        return Wanted()

    def refuse_other_formats(self, start: bytes, param: str) -> None:
        refuse_other_formats(start, param)

    def measure(self, data: bytes, wanted: Wanted, param: str) -> Extent:
        header = read_header(data, param)
        check_rate(header.rate, self._audio.rate, param)
        samples = resampled_length(header.frames, header.rate, self._audio.rate)
        extent = naming(param, self._audio.measure, samples)
        if has_float_samples(header):
            read_samples(data, header, param)
        return extent

    def processor(self, wanted: Wanted) -> dict[str, Any]:
        return {**self._audio.processor, "decoding": _DECODING}

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return self._audio.extent_of(metadata)
