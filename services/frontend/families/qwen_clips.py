"""Clips for Qwen2-VL and Qwen2.5-VL: frames are seen by twos, each two in patches as a picture is.

Qwen3-VL's clips are not taken: a time stands in its prompt's text before every two frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from PIL.Image import Resampling

from protocol.encoder_cache import SECONDS_KEY, seconds_of
from protocol.errors import ConfigError, InvalidRequest
from protocol.types import FrameSampling
from services.frontend.clips.sampling import Clip, Taken, sampled
from services.frontend.families.base import Clips, Extent, grid_in, refused
from services.frontend.media.pixel_bounds import PixelBounds, model_bounds, number, resized

GRID_KEY = "video_grid_thw"
_BROKEN = "invalid_video"
_USUAL_SIZE = MappingProxyType({"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768})
_USUAL = MappingProxyType(
    {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_frames": 4,
        "max_frames": 768,
        "max_video_tokens": 128_000,
    }
)


class ClipGrid:
    """How a clip is cut into patches, for Qwen2-VL and Qwen2.5-VL. `together`: frames of one patch;
    `patch` and `merge`: pixels a side of a patch, patches a side of a token; `resample`: how frames
    are resized."""

    # What transformers' class assumes where the model directory is silent.
    usual: ClassVar[Mapping[str, int]] = _USUAL
    usual_size: ClassVar[Mapping[str, int]] = _USUAL_SIZE
    mean: ClassVar[tuple[float, ...]] = (0.48145466, 0.4578275, 0.40821073)
    std: ClassVar[tuple[float, ...]] = (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, options: Mapping[str, Any]) -> None:
        """`options` of the video processor; `ConfigError` if these are wrong."""

        def option(name: str) -> int:
            value = options.get(name)
            return number(self.usual[name] if value is None else value, name, "video")

        _check_values(options)
        self.patch = option("patch_size")
        self.merge = option("merge_size")
        self.together = option("temporal_patch_size")
        self.min_frames = option("min_frames")
        self.max_frames = option("max_frames")
        self.bounds = model_bounds(options, self.usual_size, "video")
        self.resample = _resample(options)
        self._resizes = bool(options.get("do_resize", True))
        self._most_tokens = option("max_video_tokens") if _shares(options) else None

    def taken(self, clip: Clip, asked: FrameSampling) -> Taken:
        """Which frames the model sees."""
        return sampled(clip, asked, self.together)

    def size(self, clip: Clip, taken: Taken, bounds: PixelBounds | None) -> tuple[int, int]:
        """(height, width) in pixels to which frames are resized, within `bounds`."""
        factor = self.patch * self.merge
        if self._resizes:
            bounds = self._shared(bounds or self.bounds, taken.count)
            return resized(clip.height, clip.width, factor, bounds, "clip", _BROKEN)
        if clip.height % factor or clip.width % factor:
            raise refused(f"the clip's sides must be multiples of {factor} pixels", _BROKEN)
        return clip.height, clip.width

    def _shared(self, bounds: PixelBounds, frames: int) -> PixelBounds:
        """Bounds of one of so many frames that share a number of tokens."""
        if self._most_tokens is None:
            return bounds
        # 0.9 and 1.05 are those of transformers' `Qwen2VLVideoProcessor`.
        pixels = int(self._most_tokens * (self.patch * self.merge) ** 2 * 0.9)
        share = min(bounds.most, pixels * self.together // frames)
        return PixelBounds(bounds.least, max(share, int(bounds.least * 1.05)))

    def grid(self, clip: Clip, taken: Taken, bounds: PixelBounds | None) -> tuple[int, int, int]:
        """(t, h, w) in patches."""
        height, width = self.size(clip, taken, bounds)
        return -(-taken.count // self.together), height // self.patch, width // self.patch


class QwenClips(Clips):
    grid_class: ClassVar[type[ClipGrid]] = ClipGrid

    def __init__(self, options: Mapping[str, Any], identity: dict[str, Any]) -> None:
        """`options` of the video processor; `identity`: all that stands for it in `mm_hash`."""
        self._grid = self.grid_class(options)
        self._identity = identity
        self.bounds = self._grid.bounds
        self.min_frames, self.max_frames = self._grid.min_frames, self._grid.max_frames

    @property
    def processor(self) -> dict[str, Any]:
        return self._identity

    def measure(
        self, clip: Clip, frames: FrameSampling, bounds: PixelBounds | None = None
    ) -> Extent:
        taken = sampled(clip, frames, self._grid.together)
        grid = self._grid.grid(clip, taken, bounds)
        return self._extent(grid, taken.seconds_between(clip, self._grid.together))

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        t, h, w = grid_in(metadata, GRID_KEY)
        if h % self._grid.merge or w % self._grid.merge:
            raise InvalidRequest(f"{GRID_KEY} {[t, h, w]} is not the grid of a clip")
        return self._extent((t, h, w), seconds_of(dict(metadata), SECONDS_KEY))

    def _extent(self, grid: tuple[int, int, int], seconds: float) -> Extent:
        t, h, w = grid
        return Extent(t * h * w // self._grid.merge**2, grid, seconds)


def _resample(options: Mapping[str, Any]) -> Resampling:
    resample = options.get("resample")
    if resample not in (None, Resampling.BILINEAR, Resampling.BICUBIC):
        raise ConfigError(f"the video processor's resample must be 2 or 3, not {resample!r}")
    return Resampling.BICUBIC if resample is None else Resampling(resample)


def _check_values(options: Mapping[str, Any]) -> None:
    if not all(options.get(name, True) for name in ("do_rescale", "do_normalize")):
        raise ConfigError("the video processor must rescale and normalize")


def _shares(options: Mapping[str, Any]) -> bool:
    """Whether the frames of a clip share a number of tokens; transformers' default is no."""
    shares = options.get("cap_pixels_per_frame")
    if shares not in (None, True, False):
        raise ConfigError("the video processor's cap_pixels_per_frame must be true or false")
    return bool(shares)
