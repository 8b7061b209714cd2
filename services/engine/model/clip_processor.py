"""Frames of a clip as patches, as transformers' video processors of Qwen's models make them, which
need torchvision for that; here PyTorch alone does it, with the same values.

Each frame is resized as soon as it is decoded, so that a clip takes no more memory than the frames
that the model sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL.Image import Resampling

from protocol.errors import ConfigError, InvalidRequest
from protocol.types import EncodeItem, FrameSampling
from services.frontend.clips.readers import ClipReaders, Image
from services.frontend.clips.sampling import Clip, Spread, Taken
from services.frontend.families.qwen_clips import ClipGrid
from services.frontend.media.pixel_bounds import PixelBounds
from services.frontend.model_info import clip_processor

_MODES = {Resampling.BILINEAR: "bilinear", Resampling.BICUBIC: "bicubic"}


class ClipProcessor:
    """Clips of one model directory. Safe to use from several threads at once."""

    def __init__(
        self, model_dir: Path, readers: ClipReaders, grid: type[ClipGrid] = ClipGrid
    ) -> None:
        """`ConfigError` if the directory says what is not known here."""
        options = clip_processor(model_dir) or {}
        self._grid = grid(options)
        self._readers = readers
        self._mode = _MODES[self._grid.resample]
        self._mean, self._std = _normalization(options, self._grid)

    def patches(self, item: EncodeItem) -> dict[str, torch.Tensor]:
        """pixel_values: float32[t * h * w, channels * frames * pixels of a patch]; image_grid_thw:
        int64[1, 3]. A clip is run as a picture with a longer t. `InvalidRequest` if the bytes are
        no clip, or not all of one."""
        data = item.data or b""
        clip = self._readers.probe(data)
        taken = self._grid.taken(clip, item.frames or FrameSampling())
        bounds = None if item.pixels is None else PixelBounds(*item.pixels)
        t, h, w = grid = self._grid.grid(clip, taken, bounds)
        if t * h * w != item.length * self._grid.merge**2:
            raise InvalidRequest(
                f"media item {item.mm_hash[:16]}: the clip makes {t * h * w} patches, its"
                f" placeholder span has {item.length} tokens",
                code="embedding_length_mismatch",
            )
        frames = self._frames(data, clip, taken, (h * self._grid.patch, w * self._grid.patch))
        return {"pixel_values": self._cut(frames, grid), "image_grid_thw": torch.tensor([grid])}

    def _frames(self, data: bytes, clip: Clip, taken: Taken, size: tuple[int, int]) -> torch.Tensor:
        """uint8[frames, 3, rows, columns], as many frames as fill all patches."""
        wanted = indices(clip, taken)
        count = -(-len(wanted) // self._grid.together) * self._grid.together
        frames = torch.empty(count, 3, *size, dtype=torch.uint8)
        number = 0
        for pixels in self._readers.frames(data, clip, wanted):
            frames[number] = self._resized(pixels, size)
            number += 1
        # There is one: `ClipReaders.frames` raises where a clip has fewer than were asked for.
        frames[number:] = frames[number - 1]
        return frames

    def _resized(self, pixels: Image, size: tuple[int, int]) -> torch.Tensor:
        frame = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].contiguous()
        if frame.shape[2:] == size:
            return frame[0]
        return F.interpolate(frame, size, mode=self._mode, antialias=True)[0]

    def _cut(self, frames: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
        """Patches in the order in which four neighbours become one token."""
        t, h, w = grid
        merge, patch = self._grid.merge, self._grid.patch
        values = frames.float().sub_(self._mean).div_(self._std)
        cut = values.view(
            t, self._grid.together, 3, h // merge, merge, patch, w // merge, merge, patch
        )
        return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1)


def indices(clip: Clip, taken: Taken) -> list[int]:
    """Which frames are taken; rounded in float32, as transformers does."""
    if isinstance(taken, Spread):
        return list(taken.indices)
    found = torch.arange(0, clip.frames, taken.step).int()
    return found[: taken.count].tolist()


def _normalization(options: Mapping[str, Any], grid: ClipGrid) -> tuple[torch.Tensor, torch.Tensor]:
    """float32[3, 1, 1] each: what a value from 0 to 255 is reduced by, then divided by."""
    factor = options.get("rescale_factor") or 1 / 255
    mean, std = options.get("image_mean") or grid.mean, options.get("image_std") or grid.std
    try:
        return tuple((torch.tensor(one) * (1.0 / factor)).view(3, 1, 1) for one in (mean, std))  # type: ignore[return-value]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the video processor's image_mean or image_std: {error}") from None
