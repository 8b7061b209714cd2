"""How large pictures and clips become, and how many frames of a clip are taken.

That is what `mm_processor_kwargs` ask for, as transformers takes them: what `images_kwargs` and
`videos_kwargs` say wins over what stands beside them. `media_io_kwargs`, as vLLM takes them, come
second. `resized` follows from the bounds for models of Qwen's, whose processors say what is usual.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from protocol.bounds import INT32_MAX, Rate
from protocol.decoding import refusal_of
from protocol.errors import ConfigError, InvalidRequest
from protocol.types import FrameSampling

MAX_ASPECT_RATIO = 200
PARAM = "mm_processor_kwargs"
IO_PARAM = "media_io_kwargs"
_Pixels = Annotated[int, Meta(ge=1, le=INT32_MAX)]
_Frames = _Pixels
T = TypeVar("T")
_CLIPS_ALONE = ("fps", "num_frames", "min_frames", "max_frames", "videos_kwargs")


class PixelBounds(NamedTuple):
    """Least and most area of a picture, or of a clip's frame, after it is resized, in pixels."""

    least: int
    most: int


class _Size(msgspec.Struct, forbid_unknown_fields=True):
    """Areas in pixels, though the names say edges: so transformers' processors of Qwen's models
    have them."""

    shortest_edge: _Pixels | None = None
    longest_edge: _Pixels | None = None


class _Images(msgspec.Struct, forbid_unknown_fields=True):
    min_pixels: _Pixels | None = None
    max_pixels: _Pixels | None = None
    size: _Size | None = None


class _OfPictures(_Images, forbid_unknown_fields=True):
    images_kwargs: _Images | None = None


class _Videos(_Images, forbid_unknown_fields=True):
    fps: Rate | None = None
    num_frames: _Frames | None = None
    min_frames: _Frames | None = None
    max_frames: _Frames | None = None


class _ClipFiles(msgspec.Struct, forbid_unknown_fields=True):
    fps: Rate | None = None
    num_frames: _Frames | None = None


class _Files(msgspec.Struct, forbid_unknown_fields=True):
    video: _ClipFiles | None = None


class _OfClips(_Videos, forbid_unknown_fields=True):
    images_kwargs: _Images | None = None
    videos_kwargs: _Videos | None = None


def _read(kwargs: Mapping[str, Any], kind: type[T], param: str = PARAM) -> T:
    try:
        return msgspec.convert(kwargs, kind)
    except msgspec.ValidationError as error:
        raise refusal_of(error, f"{param}.") from None


def bounds_of(kwargs: Mapping[str, Any], usual: PixelBounds) -> PixelBounds:
    """What options ask for, with the `usual` bounds where they say nothing. `min_pixels` and
    `max_pixels` win over `size`. `InvalidRequest` names the option that is not known or wrong."""
    asked = _read(kwargs, _OfPictures)
    bounds = _bounds(asked.images_kwargs or _Images(), _bounds(asked, usual))
    if bounds.least > bounds.most:
        raise InvalidRequest(
            f"{PARAM}: min_pixels is {bounds.least}, more than max_pixels, {bounds.most}",
            param=PARAM,
        )
    return bounds


def _bounds(asked: _Images, usual: PixelBounds) -> PixelBounds:
    size = asked.size or _Size()
    return PixelBounds(
        asked.min_pixels or size.shortest_edge or usual.least,
        asked.max_pixels or size.longest_edge or usual.most,
    )


def of_pictures(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that are about clips alone."""
    return {name: value for name, value in kwargs.items() if name not in _CLIPS_ALONE}


def clip_bounds_of(kwargs: Mapping[str, Any], usual: PixelBounds) -> PixelBounds:
    """As `bounds_of`, of a clip's frames. What is asked of pictures and clips alike is followed as
    far as clips may go."""
    asked = _read(kwargs, _OfClips)
    bounds = _bounds(asked.videos_kwargs or _Images(), _bounds(asked, usual))
    return PixelBounds(min(bounds.least, bounds.most, usual.most), min(bounds.most, usual.most))


def frames_read(kwargs: Mapping[str, Any], usual: FrameSampling, most: int) -> FrameSampling:
    """What a request's `media_io_kwargs` ask for, as vLLM has them: with fps and num_frames the
    fewer frames. `InvalidRequest` names the option that is not known or wrong."""
    asked = _read(kwargs, _Files, IO_PARAM).video or _ClipFiles()
    if (asked.num_frames or 0) > most:
        message = f"{IO_PARAM}: num_frames must be at most {most} (--max-video-frames)"
        raise InvalidRequest(message, param=f"{IO_PARAM}.video.num_frames")
    if asked.fps is None:
        return replace(usual, num_frames=asked.num_frames or usual.num_frames)
    few = min(usual.max_frames, asked.num_frames or usual.max_frames)
    return replace(
        usual,
        fps=asked.fps,
        min_frames=min(usual.min_frames, few),
        max_frames=few,
        num_frames=None,
    )


def frames_of(kwargs: Mapping[str, Any], usual: FrameSampling, most: int) -> FrameSampling:
    """What options ask for, with the `usual` sampling where they say nothing. `InvalidRequest` if
    that is more than `most` frames, or both of fps and num_frames."""
    asked = _read(kwargs, _OfClips)
    return _frames(asked.videos_kwargs or _Videos(), _frames(asked, usual, most), most)


def _frames(asked: _Videos, usual: FrameSampling, most: int) -> FrameSampling:
    if asked.fps is not None and asked.num_frames is not None:
        raise InvalidRequest(f"{PARAM}: fps and num_frames exclude each other", param=PARAM)
    for name in ("num_frames", "min_frames", "max_frames"):
        if (getattr(asked, name) or 0) > most:
            message = f"{PARAM}: {name} must be at most {most} (--max-video-frames)"
            raise InvalidRequest(message, param=PARAM)
    return FrameSampling(
        fps=asked.fps or usual.fps,
        min_frames=asked.min_frames or usual.min_frames,
        max_frames=asked.max_frames or usual.max_frames,
        # Where fps is given, a usual num_frames must not win over it.
        num_frames=usual.num_frames if asked.fps is asked.num_frames is None else asked.num_frames,
    )


def parse_kwargs(text: str) -> dict[str, Any]:
    """The value of --mm-processor-kwargs, a JSON object or empty; `ConfigError` otherwise."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"--mm-processor-kwargs: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("--mm-processor-kwargs: the value is not a JSON object")
    return found


def resized(
    height: int, width: int, factor: int, bounds: PixelBounds, noun: str, code: str
) -> tuple[int, int]:
    """`smart_resize` of Qwen's processors in transformers: (height, width) as multiples of the
    factor, area within bounds. `InvalidRequest` (`code`) if the `noun` is too long and narrow."""
    longer, shorter = max(height, width), min(height, width)
    # The original refuses it too: a side would become less than one patch.
    if longer / shorter > MAX_ASPECT_RATIO:
        raise InvalidRequest(
            f"the {noun} is {width}x{height}; its sides may differ {MAX_ASPECT_RATIO}-fold at most",
            code=code,
        )
    # Python rounds halves to even, and so does the original.
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > bounds.most:
        beta = math.sqrt((height * width) / bounds.most)
        rows = max(factor, math.floor(height / beta / factor) * factor)
        columns = max(factor, math.floor(width / beta / factor) * factor)
    elif rows * columns < bounds.least:
        beta = math.sqrt(bounds.least / (height * width))
        rows = math.ceil(height * beta / factor) * factor
        columns = math.ceil(width * beta / factor) * factor
    return rows, columns


def model_bounds(options: Mapping[str, Any], usual: Mapping[str, int], noun: str) -> PixelBounds:
    """A processor's own; the older `min_pixels` and `max_pixels` win over `size`, and `usual` is
    the size of one that says none. `ConfigError` names the `noun`'s processor."""
    # Older processors have no size at all.
    size = options.get("size")
    if not isinstance(size, Mapping):
        size = usual
    least = options.get("min_pixels") or size.get("shortest_edge")
    most = options.get("max_pixels") or size.get("longest_edge")
    if not least or not most:
        raise ConfigError(f"the {noun} processor's size needs 'shortest_edge' and 'longest_edge'")
    return PixelBounds(number(least, "size", noun), number(most, "size", noun))


def number(value: Any, name: str, noun: str) -> int:
    """An option of the `noun`'s processor; `ConfigError` if it is no whole number above 0."""
    # type(), for True is an int.
    if type(value) not in (int, float) or value < 1 or value % 1:
        raise ConfigError(f"the {noun} processor's {name} must be a whole number, not {value!r}")
    return int(value)
