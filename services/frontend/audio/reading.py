"""A file of audio to samples in mono at a rate: WAV here, other formats by FFmpeg in processes of
their own. Rates change by libsoxr, as librosa does it, by which transformers' examples load audio.
"""

from __future__ import annotations

import numpy as np
import soxr

from services.frontend.audio.formats import WAV, format_of, invalid_audio, refuse_other_audio
from services.frontend.audio.wav import (
    Samples,
    WavHeader,
    has_float_samples,
    read_samples,
    read_wav_header,
)
from services.frontend.clips.readers import ClipReaders
from services.frontend.families import Audio

LEAST_RATE, MOST_RATE = 4000, 192_000  # samples a second
QUALITY = "soxr HQ"  # librosa's choice


def check_rate(rate: int, wanted: int, param: str | None = None) -> None:
    """`InvalidRequest` (`param`) if audio of this rate is not taken."""
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise invalid_audio(
            f"the audio has {rate} samples a second; send it at {LEAST_RATE} to {MOST_RATE}, best"
            f" at the model's, which is {wanted}",
            param,
        )


def resampled_length(count: int, rate: int, wanted: int) -> int:
    """Of `count` samples."""
    return -(-count * wanted // rate)


def resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    """float32[n] at `rate` → float32[`resampled_length`] at `wanted`. libsoxr may end one sample
    sooner or later."""
    if rate == wanted:
        return samples
    found = soxr.resample(samples, rate, wanted, quality="HQ")
    length = resampled_length(len(samples), rate, wanted)
    # The length was told before: placeholders were counted by it.
    made = np.zeros(length, np.float32)
    made[: len(found)] = found[:length]
    return made


class AudioReader:
    """For what a model hears. `readers` is the caller's to close; None: FFmpeg is not used. Safe
    for several threads."""

    def __init__(self, audio: Audio, readers: ClipReaders | None) -> None:
        self._audio = audio
        self._readers = readers

    def count(self, data: bytes, param: str | None = None) -> int:
        """How many samples `read` will find. `InvalidRequest` (`param`) if this is no audio, not
        all of it, or too long; of a WAV file the header says so, others are decoded."""
        if _is_wav(data, param):
            header, count = self._header(data, param)
            # Of one that is too long the length is refused; its samples need no look.
            if header.seconds <= self._audio.most_seconds and has_float_samples(header):
                read_samples(data, header, param)
            return count
        rate, samples = self._decoded(data, param)
        return resampled_length(len(samples), rate, self._audio.rate)

    def read(self, data: bytes) -> Samples:
        """float32[n] at the model's rate. Errors as of `count`, which has been asked before."""
        if _is_wav(data, None):
            header, count = self._header(data, None)
            self._audio.measure(count)  # before so many are there
            rate, samples = header.rate, read_samples(data, header)
        else:
            rate, samples = self._decoded(data, None)
        return resampled(samples, rate, self._audio.rate)

    def _header(self, data: bytes, param: str | None) -> tuple[WavHeader, int]:
        """Of a WAV file, and how many samples it becomes."""
        header = read_wav_header(data, param)
        check_rate(header.rate, self._audio.rate, param)
        return header, resampled_length(header.frames, header.rate, self._audio.rate)

    def _decoded(self, data: bytes, param: str | None) -> tuple[int, Samples]:
        if self._readers is None:
            raise invalid_audio("audio is read as WAV only with --no-allow-clips", param)
        rate, samples = self._readers.sound(data, self._audio.most_seconds, param)
        check_rate(rate, self._audio.rate, param)
        return rate, samples


def _is_wav(data: bytes, param: str | None) -> bool:
    # Of a `MediaStore` come views, which have no `startswith`.
    start = bytes(data[:16])
    refuse_other_audio(start, param)
    return format_of(start) == WAV
