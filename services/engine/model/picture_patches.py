"""Pictures of Qwen's models as patches, with the values of transformers' processor without
torchvision: that makes five copies of a picture in float32, here one pass makes one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from services.engine.attention.numba_runtime import Kernel, compiled

Channels = NDArray[Any]


class PatchCutter:
    """The kernels of `patch_kernel` as a function of a picture."""

    def __init__(self, parallel: Any) -> None:
        """`parallel`: see `numba_runtime.team`."""
        from services.engine.model import patch_kernel

        kernels = {4: patch_kernel.cut_floats, 2: patch_kernel.cut_halves}
        self._cut = {size: Kernel(cut, parallel) for size, cut in kernels.items()}

    def __call__(
        self,
        image: Channels,
        values: torch.Tensor,
        *,
        patch: int,
        merge: int,
        frames: int,
    ) -> torch.Tensor:
        """[patches, channels * frames * patch * patch] of an image uint8 [channels, rows, columns]:
        the values of its pixels, [channels, 256] of 16 or 32 bits. `ValueError` if its sides are no
        multiples of patch * merge."""
        channels, rows, columns = image.shape
        if rows % (patch * merge) or columns % (patch * merge):
            raise ValueError(f"{rows} x {columns} pixels are not whole patches")
        count, width = rows * columns // patch**2, channels * frames * patch**2
        out = torch.empty(count, width, dtype=values.dtype)
        values = values.contiguous()
        # By this thread alone: others prepare other pictures, or compute.
        self._cut[values.element_size()](
            rows // (patch * merge), out.data_ptr(), values.data_ptr(), image.ctypes.data,
            *image.strides, channels, patch, merge, frames, columns // patch, alone=True,
        )  # fmt: skip
        return out


@cache
def patch_cutter() -> PatchCutter | None:
    """None where kernels cannot run. The first call may take seconds."""
    return compiled(PatchCutter, "patches of pictures")


class QwenPictures(Qwen2VLImageProcessorPil):
    """Patches are of `patch_dtype`, as `.to(patch_dtype)` would make them of transformers' own."""

    patch_dtype = torch.float32

    def _preprocess(
        self, images: list[Channels], *, return_tensors: Any = None, **options: Any
    ) -> BatchFeature:
        cutter = patch_cutter()
        if cutter is None or any(image.dtype != np.uint8 for image in images):
            return super()._preprocess(images, return_tensors=return_tensors, **options)
        patch, merge = options["patch_size"], options["merge_size"]
        frames = options["temporal_patch_size"]
        if options["do_resize"]:
            bounds = {"size": options["size"], "resample": options["resample"]}
            images = [self.resize(image, factor=patch * merge, **bounds) for image in images]
        grids = [[1, image.shape[1] // patch, image.shape[2] // patch] for image in images]
        cuts = [
            cutter(image, self._values(image, options), patch=patch, merge=merge, frames=frames)
            for image in images
        ]
        pixels = cuts[0] if len(cuts) == 1 else torch.cat(cuts)
        data: dict[str, Any] = {"pixel_values": pixels, "image_grid_thw": torch.tensor(grids)}
        if return_tensors == "np":
            data = {name: value.numpy() for name, value in data.items()}
        return BatchFeature(data=data, tensor_type=return_tensors)

    def _values(self, image: Channels, options: Mapping[str, Any]) -> torch.Tensor:
        """What a pixel of each channel becomes, [channels, 256]: all that one can be, rescaled and
        normalized."""
        pixels = np.arange(256, dtype=np.uint8)
        values: Channels = np.repeat(pixels[None, None], image.shape[0], axis=0)
        if options["do_rescale"]:
            values = self.rescale(values, options["rescale_factor"])
        if options["do_normalize"]:
            values = self.normalize(values, options["image_mean"], options["image_std"])
        return torch.from_numpy(values.astype(np.float32)[:, 0]).to(self.patch_dtype)
