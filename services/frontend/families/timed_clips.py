"""Clips for Qwen3-VL: each of a clip's t is a picture of its own in the prompt, behind its time.

Source of the semantics: transformers 5.23, `Qwen3VLVideoProcessor`, and
`Qwen3VLProcessor.replace_video_token`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from protocol.errors import InvalidRequest
from protocol.types import FrameSampling
from services.frontend.clips.sampling import Clip, Spread, Taken, spread
from services.frontend.families.base import Extent, refused
from services.frontend.families.qwen_clips import GRID_KEY, ClipGrid, QwenClips
from services.frontend.media.pixel_bounds import MAX_ASPECT_RATIO, PixelBounds

_BROKEN = "invalid_video"
_USUAL_SIZE = MappingProxyType({"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768})
_USUAL = MappingProxyType(
    {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_frames": 4,
        "max_frames": 768,
        "max_video_tokens": 768,
    }
)


class TimedGrid(ClipGrid):
    """Qwen3-VL's: `bounds` are areas of all frames together."""

    usual = _USUAL
    usual_size = _USUAL_SIZE
    mean: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)
    std: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)

    def taken(self, clip: Clip, asked: FrameSampling) -> Spread:
        return spread(clip, asked)

    def size(self, clip: Clip, taken: Taken, bounds: PixelBounds | None) -> tuple[int, int]:
        if not self._resizes:
            return super().size(clip, taken, bounds)
        if taken.count < self.together:
            message = f"the clip has {clip.frames} frames, the model needs {self.together}"
            raise refused(message, _BROKEN)
        bounds = self._shared(bounds or self.bounds, taken.count)
        return self._resized(clip.height, clip.width, taken.count, bounds)

    def _shared(self, bounds: PixelBounds, frames: int) -> PixelBounds:
        if self._most_tokens is None:
            return bounds
        most = self._most_tokens * (self.patch * self.merge) ** 2
        each = max(min(most, bounds.most // frames), int(bounds.least * 1.05))
        return PixelBounds(bounds.least, each * frames)

    def _resized(
        self, height: int, width: int, frames: int, bounds: PixelBounds
    ) -> tuple[int, int]:
        """transformers' `smart_resize` of Qwen3-VL's clips."""
        factor = self.patch * self.merge
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
            message = f"the clip's sides may differ {MAX_ASPECT_RATIO}-fold at most"
            raise refused(message, _BROKEN)
        rows, columns = round(height / factor) * factor, round(width / factor) * factor
        filled = round(frames / self.together) * self.together
        if filled * rows * columns > bounds.most:
            # By `frames`, though the test is by `filled`: so the original has it.
            beta = math.sqrt((frames * height * width) / bounds.most)
            rows = max(factor, math.floor(height / beta / factor) * factor)
            columns = max(factor, math.floor(width / beta / factor) * factor)
        elif filled * rows * columns < bounds.least:
            beta = math.sqrt(bounds.least / (frames * height * width))
            rows = math.ceil(height * beta / factor) * factor
            columns = math.ceil(width * beta / factor) * factor
        return rows, columns


class TimedClips(QwenClips):
    """Clips whose prompt says when each of its t is shown."""

    grid_class = TimedGrid

    def measure(
        self, clip: Clip, frames: FrameSampling, bounds: PixelBounds | None = None
    ) -> Extent:
        taken = spread(clip, frames)
        t, h, w = grid = self._grid.grid(clip, taken, bounds)
        times = taken.times(clip, self._grid.together)
        said = tuple(f"<{time:.1f} seconds>" for time in times)
        return Extent(t * h * w // self._grid.merge**2, grid, before=said)

    def extent_of(self, metadata: Mapping[str, Any]) -> Extent:
        raise InvalidRequest(
            f"{GRID_KEY} does not say when a clip's frames are shown: send the clip, or its uuid"
        )


def clips_of(model_type: str) -> type[QwenClips]:
    """How a model of Qwen's takes clips."""
    return TimedClips if model_type.startswith("qwen3") else QwenClips
