"""Clips as bytes: what their container says, and their frames decoded to RGB.

The container is read packet by packet, and one frame is decoded, to know a clip's size and how many
frames it has: `read_frames` is the one place where a clip is decoded, and only encoders come here.
FFmpeg (by PyAV, the extra `video`) gets files of a few known formats and codecs only, none of which
names other files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidRequest
from services.frontend.frame_sampling import Clip
from services.frontend.mov_boxes import BadBoxes, check_boxes

FORMATS = "MP4, MOV, WebM or Matroska"
CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4")
MOST_PIXELS = 8192 * 4320  # of a frame, of which decoders keep up to seventeen
_MATROSKA = b"\x1a\x45\xdf\xa3"
_MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_MOST_STREAMS = 16
_MOST_RATE = 240  # frames a second
_MOST_MISSING = 8  # packets at a clip's end of which no frame comes
_MOST_PACKETS = 4  # of all streams, for each frame that there may be
_MOST_ADDED = 1 << 20  # pixels
_SLACK_S = 2.0  # by how much a clip may end before its container says

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class ClipLimits:
    """Of one clip: pixels of a frame, seconds that it lasts, and seconds to decode it in.
    `max_pixels` are at most `MOST_PIXELS`."""

    max_pixels: int = MOST_PIXELS
    max_seconds: float = 600.0
    decode_s: float = 60.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_pixels", min(self.max_pixels, MOST_PIXELS))


def refuse_other_containers(start: bytes, param: str | None = None) -> None:
    """`InvalidRequest` if a file that begins so is no clip of a known format; 16 bytes do."""
    _container_of(start, param)


def probe_clip(data: bytes, limits: ClipLimits, param: str | None = None) -> Clip:
    """What `read_frames` will find. `InvalidRequest` (`param`) if this is no clip, a broken one or
    one beyond the limits."""
    with _opened(data, limits, param) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise refused("the clip does not say how many frames a second it has", param)
        frames, end = _count(container, stream, limits, param)
        _check_complete(container, stream, frames, end, max(_SLACK_S, 2 / float(rate)), param)
    with _opened(data, limits, param) as (container, stream):
        first = next(iter(container.decode(stream)), None)
        if first is None:
            raise refused("the clip has no frame that can be decoded", param)
        width, height = _upright(first, first.width, first.height)
    _check_pixels(width * height, limits, param)
    clip = Clip(width, height, frames, float(rate))
    if clip.seconds > limits.max_seconds:
        message = f"the clip lasts {clip.seconds:.1f} s, the most is {limits.max_seconds:g} s"
        raise refused(f"{message} (--max-video-duration)", param)
    return clip


def read_frames(
    data: bytes, clip: Clip, wanted: Sequence[int], limits: ClipLimits
) -> Iterator[Image]:
    """uint8[height, width, 3] of each index of `wanted`, which ascends, upright and in RGB.
    `InvalidRequest` if there are fewer frames than `clip` says, or decoding takes too long."""
    until = time.monotonic() + limits.decode_s
    with _opened(data, limits, None) as (container, stream):
        place, index, last = 0, -1, None
        for index, frame in enumerate(container.decode(stream)):
            if time.monotonic() > until:
                raise refused(f"the clip cannot be decoded within {limits.decode_s:g} s")
            last = frame
            while place < len(wanted) and wanted[place] == index:
                yield _rgb(frame, clip)
                place += 1
            if place == len(wanted):
                return
        if last is None or wanted[-1] - index > _MOST_MISSING:
            raise refused(f"the clip is broken: of {clip.frames} frames {index + 1} can be decoded")
        for _ in range(place, len(wanted)):
            yield _rgb(last, clip)


def refused(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="invalid_video")


def _container_of(start: bytes, param: str | None) -> str:
    if start[:4] == _MATROSKA:
        return "matroska"
    if start[4:8] in _MOV_BOXES:
        return "mov"
    raise refused(f"this is no clip of a known format ({FORMATS})", param)


def _library(param: str | None) -> Any:
    try:
        import av
    except ImportError:
        raise InvalidRequest(
            "video_url: this server has no PyAV to decode clips with: install the extra"
            " 'video' (pip install 'triptych[video]') on proxies and encoders",
            param=param,
            code="unsupported_media",
        ) from None
    return av


@contextmanager
def _opened(data: bytes, limits: ClipLimits, param: str | None) -> Iterator[tuple[Any, Any]]:
    """A container and its video stream; whatever FFmpeg says against it is the client's fault."""
    name = _container_of(bytes(data[:16]), param)
    if name == "mov":
        try:
            check_boxes(data)
        except BadBoxes as error:
            raise refused(f"the clip is broken or incomplete: {error}", param) from None
    av = _library(param)
    # FFmpeg checks a size before it has memory for such a frame, also where a packet changes it;
    # with what it adds to have sides of its liking.
    most = MappingProxyType({"max_pixels": str(limits.max_pixels + _MOST_ADDED)})
    try:
        with av.open(
            BytesIO(data),
            format=name,
            container_options={"max_streams": str(_MOST_STREAMS)},
            stream_options=[dict(most)] * _MOST_STREAMS,
            metadata_errors="replace",
            io_open=_no_other_file,
        ) as container:
            yield container, _video_of(container, most, limits, param)
    except (av.FFmpegError, OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refused(f"the clip is broken or incomplete: {reason}", param) from error


def _no_other_file(*_: Any) -> Any:
    """A clip is one file, whatever it names."""
    raise PermissionError("a clip may not name another file")


def _video_of(container: Any, options: Any, limits: ClipLimits, param: str | None) -> Any:
    if not container.streams.video:
        raise refused("the clip has no video stream", param)
    stream = container.streams.video[0]
    context = stream.codec_context
    codec = context.codec.canonical_name if context is not None else "unknown"
    if codec not in CODECS:
        raise refused(f"the clip's codec is {codec}, known are {', '.join(CODECS)}", param)
    _check_pixels(context.width * context.height, limits, param)
    context.options = dict(options)
    context.thread_count = 1  # as many clips are decoded at a time as there are threads for it
    return stream


def _check_pixels(pixels: int, limits: ClipLimits, param: str | None) -> None:
    if not 0 < pixels <= limits.max_pixels:  # 0 where FFmpeg has refused a size
        message = f"the clip's frames have no pixels, or more than {limits.max_pixels}"
        raise refused(f"{message} (--max-media-pixels)", param)


def _count(container: Any, stream: Any, limits: ClipLimits, param: str | None) -> tuple[int, float]:
    """(frames of the stream, second at which the last packet of any stream ends)."""
    frames, end, most = 0, 0.0, limits.max_seconds * _MOST_RATE
    for number, packet in enumerate(container.demux()):
        if number > most * _MOST_PACKETS:
            raise refused(f"the clip has more than {most * _MOST_PACKETS:g} packets", param)
        if not packet.size:
            continue
        if packet.pts is not None and packet.time_base:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream_index == stream.index and not packet.is_discard:
            frames += 1
        if frames > most:
            raise refused(f"the clip has more than {most:g} frames (--max-video-duration)", param)
    return frames, end


def _check_complete(
    container: Any, stream: Any, frames: int, end: float, slack: float, param: str | None
) -> None:
    """A file that was cut off says more in its header than it has, by more than `slack` seconds."""
    said = stream.frames
    seconds = (container.duration or 0) / 1e6
    begin = max(0.0, (container.start_time or 0) / 1e6)
    if frames < 1 or said - frames > _MOST_MISSING or begin + seconds - end > slack:
        raise refused(
            f"the clip is incomplete: it says that it lasts {seconds:.1f} s and has"
            f" {said or 'some'} frames; {frames} are there, the last at {end:.1f} s",
            param,
        )


def _quarter_turns(frame: Any) -> int:
    return round((frame.rotation or 0) / 90) % 4


def _upright(frame: Any, width: int, height: int) -> tuple[int, int]:
    return (height, width) if _quarter_turns(frame) % 2 else (width, height)


def _rgb(frame: Any, clip: Clip) -> Image:
    turns = _quarter_turns(frame)
    width, height = _upright(frame, clip.width, clip.height)
    pixels: Image = frame.reformat(width=width, height=height, format="rgb24").to_ndarray()
    return np.rot90(pixels, turns) if turns else pixels
