"""A clip read with FFmpeg (by PyAV, the extra `video`), in a process of its own: `clips.child`.

The container is read packet by packet, and one frame is decoded, to know a clip's size and how many
frames it has: `read_frames` is the one place where a clip is decoded, and only encoders ask for it.
FFmpeg gets files of a few known formats and codecs only, none of which names other files.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, BinaryIO

import av
import numpy as np
from numpy.typing import NDArray

from services.frontend.clips.limits import (
    ClipLimits,
    check_boxes,
    container_of,
    cut_off,
    invalid_clip,
)
from services.frontend.clips.sampling import Clip

CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4")
_MOST_STREAMS = 16
_MOST_RATE = 240  # frames a second
_MOST_MISSING = 8  # packets at a clip's end of which no frame comes
_MOST_PACKETS = 4  # of all streams, for each frame that there may be
_MOST_ADDED = 1 << 20  # pixels
_SLACK_S = 2.0  # by how much a clip may end before its container says

Image = NDArray[np.uint8]


def probe_clip(file: BinaryIO, limits: ClipLimits) -> Clip:
    """What `read_frames` will find. `InvalidRequest` if this is no clip, a broken one or
    one beyond the limits."""
    with _opened(file, limits) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate
        if not rate:
            raise invalid_clip("the clip does not say how many frames a second it has")
        frames, end = _count(container, stream, limits)
        # Or two frames, of a clip that shows each for longer than the slack.
        _check_complete(container, stream, frames, end, max(_SLACK_S, 2 / float(rate)))
    # Anew: the count has read the container to its end.
    with _opened(file, limits) as (container, stream):
        first = next(iter(container.decode(stream)), None)
        if first is None:
            raise invalid_clip("the clip has no frame that can be decoded")
        width, height = _upright(first, first.width, first.height)
    _check_pixels(width * height, limits)
    clip = Clip(width, height, frames, float(rate))
    if clip.seconds > limits.max_seconds:
        message = f"the clip lasts {clip.seconds:.1f} s, the most is {limits.max_seconds:g} s"
        raise invalid_clip(f"{message} (--max-video-duration)")
    return clip


def read_frames(
    file: BinaryIO, clip: Clip, wanted: Iterable[int], limits: ClipLimits
) -> Iterator[Image]:
    """uint8[height, width, 3] of each index of `wanted`, which ascends, upright and in RGB.
    `InvalidRequest` if there are fewer frames than `clip` says."""
    with _opened(file, limits) as (container, stream):
        frames = enumerate(container.decode(stream))
        index, frame = next(frames, (-1, None))
        for number in wanted:
            while index < number and (following := next(frames, None)) is not None:
                index, frame = following
            if frame is None or number - index > _MOST_MISSING:
                message = f"of {clip.frames} frames {index + 1} can be decoded"
                raise invalid_clip(f"the clip is broken: {message}")
            yield _rgb(frame, clip)


@contextmanager
def _opened(file: BinaryIO, limits: ClipLimits) -> Iterator[tuple[Any, Any]]:
    """A container and its video stream; every error of FFmpeg is the client's fault."""
    name = container_of(_start(file))
    # FFmpeg checks a size before it has memory for such a frame, also where a packet changes it;
    # with what it adds to have sides of its liking.
    most = MappingProxyType({"max_pixels": str(limits.pixels + _MOST_ADDED)})
    try:
        if name == "mov":
            data = file.read()
            check_boxes(data)
            if cut_off(data):
                raise invalid_clip("the clip is incomplete: the file was cut off")
            # The process may have little memory: the file lies there once already.
            del data
            file.seek(0)
        with av.open(
            file,
            format=name,
            container_options={"max_streams": str(_MOST_STREAMS)},
            stream_options=[dict(most)] * _MOST_STREAMS,
            metadata_errors="replace",
            io_open=_no_other_file,
        ) as container:
            yield container, _video_of(container, most, limits)
    # PyAV's own is an `FFmpegError` too; `clips.child` ends after it.
    except MemoryError:
        raise
    except (av.FFmpegError, OSError, UnicodeError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.EAGAIN, errno.ENOMEM):
            raise MemoryError from error  # EAGAIN: of a thread whose stack has no room
        reason = getattr(error, "strerror", None) or str(error)
        raise invalid_clip(f"the clip is broken or incomplete: {reason}") from error


def _start(file: BinaryIO) -> bytes:
    file.seek(0)
    start = file.read(16)
    file.seek(0)
    return start


def _no_other_file(*_: Any) -> Any:
    """A clip is one file; others that it names are not opened."""
    raise PermissionError("a clip may not name another file")


def _video_of(container: Any, options: Any, limits: ClipLimits) -> Any:
    if not container.streams.video:
        raise invalid_clip("the clip has no video stream")
    stream = container.streams.video[0]
    context = stream.codec_context
    codec = context.codec.canonical_name if context is not None else "unknown"
    if codec not in CODECS:
        raise invalid_clip(f"the clip's codec is {codec}, known are {', '.join(CODECS)}")
    _check_pixels(context.width * context.height, limits)
    context.options = dict(options)
    context.thread_count = 1  # as many clips are decoded at a time as there are threads for it
    return stream


def _check_pixels(pixels: int, limits: ClipLimits) -> None:
    if not 0 < pixels <= limits.pixels:  # 0 where FFmpeg has refused a size
        message = f"the clip's frames have no pixels, or more than {limits.pixels}"
        raise invalid_clip(f"{message} (--max-media-pixels)")


def _count(container: Any, stream: Any, limits: ClipLimits) -> tuple[int, float]:
    """(frames of the stream, second at which the last packet of any stream ends)."""
    frames, end, most = 0, 0.0, limits.max_seconds * _MOST_RATE
    for number, packet in enumerate(container.demux()):
        if number > most * _MOST_PACKETS:
            raise invalid_clip(f"the clip has more than {most * _MOST_PACKETS:g} packets")
        # Each stream ends with an empty packet, which only flushes its decoder.
        if not packet.size:
            continue
        if packet.pts is not None and packet.time_base:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream_index == stream.index and not packet.is_discard:
            frames += 1
        if frames > most:
            raise invalid_clip(f"the clip has more than {most:g} frames (--max-video-duration)")
    return frames, end


def _check_complete(container: Any, stream: Any, frames: int, end: float, slack: float) -> None:
    """A file that was cut off says more in its header than it has, by more than `slack` seconds."""
    # An MP4 counts frames that its edit list leaves out, too; whether it is whole its boxes tell.
    said = 0 if "mov" in container.format.name else stream.frames
    seconds = (container.duration or 0) / 1e6
    begin = max(0.0, (container.start_time or 0) / 1e6)
    if frames < 1 or said - frames > _MOST_MISSING or begin + seconds - end > slack:
        raise invalid_clip(
            f"the clip is incomplete: it says that it lasts {seconds:.1f} s and has"
            f" {said or 'some'} frames; {frames} are there, the last at {end:.1f} s",
        )


def _quarter_turns(frame: Any) -> int:
    return round((frame.rotation or 0) / 90) % 4


def _upright(frame: Any, width: int, height: int) -> tuple[int, int]:
    return (height, width) if _quarter_turns(frame) % 2 else (width, height)


def _rgb(frame: Any, clip: Clip) -> Image:
    turns = _quarter_turns(frame)
    width, height = _upright(frame, clip.width, clip.height)
    # One thread, as for decoding: each other one would take 8 MiB for its stack.
    made = frame.reformat(width=width, height=height, format="rgb24", threads=1)
    pixels: Image = made.to_ndarray()
    return np.rot90(pixels, turns) if turns else pixels
