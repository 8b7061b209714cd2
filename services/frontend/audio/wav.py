"""WAV files: what the header says, in time that does not depend on the length, and the samples.

Read here and not by the standard library's `wave`, which knows no float samples and takes a file
that was cut off for a whole one. Source of the format: Microsoft, "Multiple Channel Audio Data and
WAVE Files" (2007).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.frontend.audio.formats import WAV, format_of, invalid_audio

MOST_CHANNELS = 8
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_WIDTHS = MappingProxyType({_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)})
_TO_THE_END = 0xFFFFFFFF  # size of samples that were written as a stream
_MOST_CHUNKS = 1024
_LOUDEST = 2.0**32  # the largest float sample; beyond that a spectrum has no finite values

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class WavHeader:
    """`rate`: samples a second. `frames`: samples of each channel. `code` and `width`: format of a
    sample, and its bits. `start`: offset of the first one in the file, in bytes."""

    rate: int
    channels: int  # number of channels
    frames: int
    code: int
    width: int
    start: int

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def read_wav_header(data: bytes, param: str | None = None) -> WavHeader:
    """`InvalidRequest` (`param`) if this is no WAV file, not all of one, or one of another form."""
    if format_of(bytes(data[:16])) != WAV:
        raise invalid_audio("the audio is no WAV file", param)
    form: bytes | None = None
    for kind, start, size in _chunks(data):
        if kind == b"fmt ":
            # 40 bytes are the longest form, the extensible one.
            form = bytes(data[start : start + min(size, 40)])
        elif kind == b"data":
            return _header(form, data, start, size, param)
    raise invalid_audio("the audio is incomplete: the file has no samples", param)


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(kind, offset of the content, its size as the file says it)."""
    place = 12
    for _ in range(_MOST_CHUNKS):
        if len(data) - place < 8:
            return
        kind, size = struct.unpack("<4sI", data[place : place + 8])
        yield kind, place + 8, size
        # RIFF pads chunks to an even length.
        place += 8 + size + size % 2


def _header(form: bytes | None, data: bytes, start: int, size: int, param: str | None) -> WavHeader:
    if form is None or len(form) < 16:
        raise invalid_audio(
            "the audio is broken: the file does not say what its samples are", param
        )
    code, channels, rate, _, block, width = struct.unpack("<HHIIHH", form[:16])
    if code == _EXTENSIBLE and len(form) >= 26:
        # The GUID of the format begins with its code.
        code = int.from_bytes(form[24:26], "little")
    if width not in _WIDTHS.get(code, ()):
        raise invalid_audio(
            f"the audio's samples are of format {code} with {width} bits; known are PCM of 8, 16,"
            " 24 or 32 bits and float of 32 or 64",
            param,
        )
    if not 1 <= channels <= MOST_CHANNELS:
        raise invalid_audio(
            f"the audio has {channels} channels, 1 to {MOST_CHANNELS} are taken", param
        )
    if block != channels * width // 8 or not rate:
        raise invalid_audio("the audio is broken: its header contradicts itself", param)
    there = len(data) - start
    if size == _TO_THE_END:
        size = there
    if size > there:
        message = f"the audio is incomplete: of {size} bytes of samples {there} are there"
        raise invalid_audio(message, param)
    if size < block:
        raise invalid_audio("the audio has no samples", param)
    return WavHeader(rate, channels, size // block, code, width, start)


def read_samples(data: bytes, header: WavHeader, param: str | None = None) -> Samples:
    """float32[frames]: the mean of the channels, full scale ±1. `InvalidRequest` (`param`) if float
    samples are no numbers or far beyond that."""
    count, width = header.frames * header.channels, header.width // 8
    raw = np.frombuffer(data, np.uint8, count * width, header.start)
    values = _values(raw, header).reshape(header.frames, header.channels)
    with np.errstate(over="ignore", invalid="ignore"):  # of what is refused then
        mono: NDArray[np.float64] = values.mean(axis=1, dtype=np.float64)
    check_loudness(mono, param)
    return (mono / _full_scale(header)).astype(np.float32)


def check_loudness(samples: NDArray[np.floating[Any]], param: str | None = None) -> None:
    """`InvalidRequest` (`param`) if there are such as no spectrum can be made of; at least one."""
    if not np.abs(samples).max() < _LOUDEST:
        raise invalid_audio(
            "the audio has samples that are no finite numbers, or far too large", param
        )


def has_float_samples(header: WavHeader) -> bool:
    """Whether samples may be what no spectrum can be made of."""
    return header.code == _FLOAT


def _values(raw: NDArray[np.uint8], header: WavHeader) -> NDArray[Any]:
    if header.code == _FLOAT:
        return raw.view(f"<f{header.width // 8}")
    if header.width == 8:  # the one width without a sign
        return raw.astype(np.int16) - 128
    if header.width == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        # Into the upper bytes: the sign comes along, and full scale is that of 32 bits.
        wide[:, 1:] = raw.reshape(-1, 3)
        return wide.reshape(-1).view("<i4")
    return raw.view(f"<i{header.width // 8}")


def _full_scale(header: WavHeader) -> float:
    if header.code == _FLOAT:
        return 1.0
    return 2.0 ** (31 if header.width == 24 else header.width - 1)
