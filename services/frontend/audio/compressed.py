"""Compressed audio read with FFmpeg (by PyAV, the extra `video`), in a process of its own:
`clips.child`.

FFmpeg gets files of a few known formats and codecs only, none of which names other files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, BinaryIO

import av
import numpy as np
from numpy.typing import NDArray

from services.frontend.audio.formats import format_of, invalid_audio
from services.frontend.audio.wav import check_loudness

CODECS = ("mp3", "flac", "vorbis", "opus", "aac")
MOST_CHANNELS = 8
_DEMUXERS = MappingProxyType(
    {"MP3": "mp3", "FLAC": "flac", "Ogg": "ogg", "MP4": "mov", "WebM": "matroska"}
)
_MOST_STREAMS = 4
_PICTURE = "1"  # pixels: covers that a file brings are not decoded
_MP3_HEAD = 1 << 14  # bytes in which a count of frames stands, if there is one
_MP3_COUNTS = (b"Xing", b"Info", b"VBRI")
_SLACK_S = 0.3  # by how much audio may end before its container says

Samples = NDArray[np.float32]


def read_sound(file: BinaryIO, most_seconds: float) -> tuple[int, Samples]:
    """(samples a second, float32[n] in mono, full scale ±1). `InvalidRequest` if this is no audio
    of a known format, not all of it, or longer."""
    with _opened(file) as (container, stream):
        rate = stream.codec_context.sample_rate
        pieces: list[Samples] = []
        count = 0
        for frame in container.decode(stream):
            # Ogg may chain streams of different rates.
            if frame.sample_rate != rate:
                raise invalid_audio("the audio changes its rate on its way")
            pieces.append(_mono(frame))
            count += len(pieces[-1])
            # While it grows: what a header says of the length need not be so.
            if count > most_seconds * rate:
                raise invalid_audio(
                    f"the audio lasts longer than the {most_seconds:g} s that this model hears;"
                    " send it in parts"
                )
        said = _said_seconds(file, container, stream)
        if not count or said - count / rate > _SLACK_S:
            raise invalid_audio(
                f"the audio is incomplete: it says that it lasts {said:.1f} s, and"
                f" {count / rate:.1f} s are there"
            )
    sound = np.concatenate(pieces)
    check_loudness(sound)
    return rate, sound


def _said_seconds(file: BinaryIO, container: Any, stream: Any) -> float:
    """How long the file says that its sound lasts; 0.0 where it does not, as in MP3 without a count
    of frames, of which FFmpeg guesses it by the size."""
    if container.format.name == "mp3":
        file.seek(0)
        start = file.read(_MP3_HEAD)
        if not any(name in start for name in _MP3_COUNTS):
            return 0.0
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return 0.0 if container.streams.video else (container.duration or 0) / 1e6


def _mono(frame: Any) -> Samples:
    (planar,) = av.AudioResampler("fltp", frame.layout, frame.sample_rate).resample(frame)
    samples: Samples = planar.to_ndarray().mean(axis=0, dtype=np.float32)
    return samples


@contextmanager
def _opened(file: BinaryIO) -> Iterator[tuple[Any, Any]]:
    """A container and its audio stream; every error of FFmpeg is the client's fault."""
    file.seek(0)
    name = _DEMUXERS.get(format_of(file.read(16)))
    file.seek(0)
    if name is None:
        raise invalid_audio("this is no audio of a known format")
    try:
        with av.open(
            file,
            format=name,
            container_options={"max_streams": str(_MOST_STREAMS)},
            stream_options=[{"max_pixels": _PICTURE}] * _MOST_STREAMS,
            # Tags in another encoding than UTF-8 are no reason to refuse the sound.
            metadata_errors="replace",
            io_open=_no_other_file,
        ) as container:
            yield container, _audio_of(container)
    # PyAV's own is an `FFmpegError` too; `clips.child` ends after it.
    except MemoryError:
        raise
    except (av.FFmpegError, OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise invalid_audio(f"the audio is broken or incomplete: {reason}") from error


def _no_other_file(*_: Any) -> Any:
    """Audio is one file; others that it names are not opened."""
    raise PermissionError("audio may not name another file")


def _audio_of(container: Any) -> Any:
    if not container.streams.audio:
        raise invalid_audio("the file has no audio stream")
    stream = container.streams.audio[0]
    context = stream.codec_context
    codec = context.codec.canonical_name if context is not None else "unknown"
    if codec not in CODECS:
        raise invalid_audio(f"the audio's codec is {codec}, known are {', '.join(CODECS)}")
    if not 1 <= context.channels <= MOST_CHANNELS or not context.sample_rate:
        raise invalid_audio(
            f"the audio has {context.channels} channels, 1 to {MOST_CHANNELS} are taken"
        )
    # As of clips: so many files at a time as there are threads.
    context.thread_count = 1
    return stream
