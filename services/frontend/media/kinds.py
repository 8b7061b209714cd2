"""Kinds of media: how one of each is checked, measured and named."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import FrameSampling
from services.frontend.clips.limits import container_of
from services.frontend.clips.readers import BUSY, BoundedThreads, ClipReaders
from services.frontend.config import FrontendConfig
from services.frontend.families import Clips, Extent, Family
from services.frontend.media.picture_formats import probe, refuse_other_pictures
from services.frontend.media.pixel_bounds import (
    PARAM,
    PixelBounds,
    bounds_of,
    clip_bounds_of,
    frames_of,
    frames_read,
    of_pictures,
)

_INLINE_BYTES = 1 << 14  # a header of as many parts as fit takes less than a millisecond
_WAITING = 64  # clips that wait to be measured
_NO_BOUNDS = "this model has one size for all pictures"
P = ParamSpec("P")
T = TypeVar("T")


class Wanted(NamedTuple):
    """What becomes of an item, as in `MMItem`. `pixels` None: the model's own bounds. `frames`:
    None for all but clips."""

    pixels: tuple[int, int] | None = None
    frames: FrameSampling | None = None


class Kind(ABC):
    """How media of one modality are read. `noun`: what errors call one."""

    noun: str

    @abstractmethod
    def wanted(self, kwargs: Mapping[str, Any], io: Mapping[str, Any]) -> Wanted:
        """What a request's `mm_processor_kwargs` and `media_io_kwargs` ask for, at most as much as
        without them; `InvalidRequest` names the option at fault."""

    @abstractmethod
    def refuse_other_formats(self, start: bytes, param: str) -> None:
        """`InvalidRequest` if a file that begins so cannot be one; 16 bytes do."""

    async def run(self, work: Callable[[], T], size: int) -> T:
        """`work` with `measure` in it, for a file of `size` bytes."""
        return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)

    async def close(self) -> None:  # noqa: B027
        """Nothing is measured any more."""

    @abstractmethod
    def measure(self, data: bytes, wanted: Wanted, param: str) -> Extent:
        """Its tokens; `RequestError` (`param`) if it is broken or refused."""

    @abstractmethod
    def processor(self, wanted: Wanted) -> dict[str, Any]:
        """Everything its embedding depends on besides weights and bytes."""

    @abstractmethod
    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        """Its tokens by the metadata that its encoder reported."""


class Pictures(Kind):
    noun = "picture"

    def __init__(self, config: FrontendConfig, family: Family) -> None:
        self._max_pixels = config.media.max_pixels
        self._family = family
        self._processor, self._own_bounds = family.processor, family.bounds
        self._clips = family.clips is not None and config.allow_clips
        self._default = self._default_bounds(self._own(config.mm_processor_kwargs))

    def _own(self, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Options of pictures; where no clips are taken, those of clips are wrong."""
        return of_pictures(kwargs) if self._clips else kwargs

    def _default_bounds(self, kwargs: Mapping[str, Any]) -> PixelBounds | None:
        """As --mm-processor-kwargs says, or the model's own."""
        own = self._own_bounds
        if not kwargs:
            return own
        if own is None:
            raise ConfigError(f"--mm-processor-kwargs: {_NO_BOUNDS}")
        return configured(bounds_of, kwargs, own)

    def wanted(self, kwargs: Mapping[str, Any], io: Mapping[str, Any]) -> Wanted:
        kwargs, default = self._own(kwargs), self._default
        if kwargs and default is None:
            raise InvalidRequest(f"{PARAM}: {_NO_BOUNDS}", param=PARAM)
        wanted = bounds_of(kwargs, default) if kwargs and default else default
        # A larger picture costs more tokens than the operator has allowed for.
        if wanted is not None and default is not None and wanted.most > default.most:
            raise InvalidRequest(
                f"{PARAM}: max_pixels must be at most {default.most}, not {wanted.most}",
                param=PARAM,
            )
        return Wanted(None if wanted == self._own_bounds else wanted)

    def refuse_other_formats(self, start: bytes, param: str) -> None:
        refuse_other_pictures(start, param)

    def measure(self, data: bytes, wanted: Wanted, param: str) -> Extent:
        width, height = probe(data, max_pixels=self._max_pixels, param=param)
        bounds = None if wanted.pixels is None else PixelBounds(*wanted.pixels)
        return naming(param, self._family.measure_image, width, height, bounds)

    def processor(self, wanted: Wanted) -> dict[str, Any]:
        processor, bounds = self._processor, wanted.pixels
        # Only if other than the model's own: names of pictures stay those that encoders know.
        return processor if bounds is None else {**processor, "bounds": bounds}

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return self._family.extent_of(metadata)


class Videos(Kind):
    noun = "clip"

    def __init__(self, config: FrontendConfig, clips: Clips) -> None:
        self._clips = clips
        self._readers = ClipReaders(config.media.clips, config.media.video_readers)
        self._threads = BoundedThreads(
            config.media.video_readers, _WAITING, config.media.video_timeout_s, BUSY
        )
        self._max_tokens = config.max_video_tokens
        most = config.max_video_frames
        usual = FrameSampling(
            fps=config.video_fps,
            min_frames=min(clips.min_frames, most),
            max_frames=min(clips.max_frames, most),
        )
        kwargs = config.mm_processor_kwargs
        self._bounds = configured(clip_bounds_of, kwargs, clips.bounds)
        self._frames = configured(frames_of, kwargs, usual, most)
        self._most = most

    def wanted(self, kwargs: Mapping[str, Any], io: Mapping[str, Any]) -> Wanted:
        bounds = clip_bounds_of(kwargs, self._bounds)
        frames = frames_of(kwargs, frames_read(io, self._frames, self._most), self._most)
        return Wanted(None if bounds == self._clips.bounds else bounds, frames)

    def refuse_other_formats(self, start: bytes, param: str) -> None:
        container_of(start, param)

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Never in the threads of others: a clip may take as long as `--video-timeout`."""
        return await self._threads.run(work)

    async def close(self) -> None:
        # First: it ends the waits of the threads, which the interpreter joins when it exits.
        self._readers.close()
        self._threads.close()

    def measure(self, data: bytes, wanted: Wanted, param: str) -> Extent:
        clip = self._readers.probe(data, param)
        bounds = None if wanted.pixels is None else PixelBounds(*wanted.pixels)
        frames = wanted.frames or self._frames
        extent = naming(param, self._clips.measure, clip, frames, bounds)
        if extent.length > self._max_tokens:
            raise InvalidRequest(
                f"the clip becomes {extent.length} tokens, the most is {self._max_tokens}"
                " (--max-video-tokens): ask for fewer frames or pixels by mm_processor_kwargs",
                param=param,
                code="invalid_video",
            )
        return extent

    def processor(self, wanted: Wanted) -> dict[str, Any]:
        frames = msgspec.structs.asdict(wanted.frames or self._frames)
        return {**self._clips.processor, "frames": frames, "bounds": wanted.pixels}

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        return self._clips.extent_of(metadata)


def configured(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`read(…)`, whose `InvalidRequest` is about the flag."""
    try:
        return read(*args, **kwargs)
    except InvalidRequest as error:
        raise ConfigError(f"--mm-processor-kwargs: {error.message}") from None


def naming(param: str, measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`measure(…)`, whose `InvalidRequest` is about the field `param`."""
    try:
        return measure(*args, **kwargs)
    except InvalidRequest as error:
        error.param = param
        raise
