"""A file of audio to samples in mono at a rate: WAV here, other formats by FFmpeg in processes of
their own."""

from __future__ import annotations

from services.frontend.audio.formats import WAV, format_of, refuse_other_formats, refused
from services.frontend.audio.resampling import check_rate, resampled, resampled_length
from services.frontend.audio.wav import (
    Header,
    Samples,
    has_float_samples,
    read_header,
    read_samples,
)
from services.frontend.clips.readers import ClipReaders
from services.frontend.families import Audio


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

    def _header(self, data: bytes, param: str | None) -> tuple[Header, int]:
        """Of a WAV file, and how many samples it becomes."""
        header = read_header(data, param)
        check_rate(header.rate, self._audio.rate, param)
        return header, resampled_length(header.frames, header.rate, self._audio.rate)

    def _decoded(self, data: bytes, param: str | None) -> tuple[int, Samples]:
        if self._readers is None:
            raise refused("audio is read as WAV only with --no-allow-clips", param)
        rate, samples = self._readers.sound(data, self._audio.most_seconds, param)
        check_rate(rate, self._audio.rate, param)
        return rate, samples


def _is_wav(data: bytes, param: str | None) -> bool:
    start = bytes(data[:16])
    refuse_other_formats(start, param)
    return format_of(start) == WAV
