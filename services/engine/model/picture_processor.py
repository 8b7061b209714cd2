"""The processor of a family's pictures, with less to do for each pixel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor
from transformers.image_processing_backends import PilBackend
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from services.engine.model.picture_patches import QwenPictures, patch_cutter

Channels = NDArray[Any]


def picture_processor(model_dir: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The processor that the model directory names. `dtype`: of patches, where the processor makes
    them in one pass; others make them in float32."""
    processor = AutoImageProcessor.from_pretrained(model_dir)
    if isinstance(processor, PilBackend):
        kind = type(processor)
        if kind is Qwen2VLImageProcessorPil:
            kind = QwenPictures
            processor.patch_dtype = dtype
            patch_cutter()  # no picture is to wait for its compilation
        # A class that stands behind the family's own and before the backend's.
        processor.__class__ = type(kind.__name__, (kind, _LeanBackend), {})
    return processor


class _LeanBackend(PilBackend):
    """Pictures are uint8[channels, rows, columns] until they are rescaled.

    With torchvision transformers takes its own processors for it. Without, its numpy ones took a
    third of a 1080p picture's time to normalize it, channels innermost and in new memory twice.
    Here a table of 256 entries makes the same values channel by channel, and sums are in place.
    Pillow and numpy let other threads of the process run meanwhile.
    """

    def rescale(self, image: Channels, scale: float, **options: Any) -> Channels:
        if image.dtype != np.uint8:
            changed: Channels = super().rescale(image, scale, **options)
            return changed
        table = super().rescale(np.arange(256, dtype=np.uint8)[None, None], scale)[0, 0]
        return np.take(table, image)  # rows in order in memory, for any order of the picture's

    def normalize(self, image: Channels, mean: Any, std: Any, **options: Any) -> Channels:
        """In place, as the picture is a result of `rescale`."""
        if image.dtype != np.float32 or not image.flags.writeable:
            changed: Channels = super().normalize(image, mean, std, **options)
            return changed
        image -= np.asarray(mean, np.float32).reshape(-1, 1, 1)
        image /= np.asarray(std, np.float32).reshape(-1, 1, 1)
        return image
