"""What transformers' video processors of Qwen2-VL and Qwen3-VL make of a clip's frames.

Their classes cannot be loaded without torchvision. Their own code chooses frames, size and patches
here; what torchvision does in between is what PyTorch does by these calls, and
tests/unit/engine/test_clip_processor.py compares the whole with the class where there is
torchvision.
"""

import ast
import math
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers.video_utils import VideoMetadata

from tests.support.clips import Frames

MODELS = Path(transformers.__file__).parent / "models"
TAKEN = ("smart_resize", "sample_frames", "patchify")
DEFAULTS: dict[str, Any] = {
    "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "min_frames": 4,
    "max_frames": 768, "num_frames": None, "fps": None,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}  # fmt: skip

TIMED: dict[str, Any] = {
    **DEFAULTS, "patch_size": 16,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip


@lru_cache(maxsize=2)
def own_code(model: str = "qwen2_vl") -> Any:
    """transformers' functions of the names `TAKEN`; methods take what stands for `self`."""
    source = MODELS / model / f"video_processing_{model}.py"
    tree = ast.parse(source.read_text())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in TAKEN]
    future = ast.parse("from __future__ import annotations").body
    module = ast.Module([*future, *found], type_ignores=[])
    names: dict[str, Any] = {"math": math, "torch": torch, "np": np}
    exec(compile(module, str(source), "exec"), names)
    return SimpleNamespace(**{name: names[name] for name in TAKEN})


def sample(total: int, rate: float, **options: Any) -> VideoMetadata:
    """Which frames are taken; `options` of the processor, fps or num_frames among them."""
    metadata = VideoMetadata(total_num_frames=total, fps=rate)
    processor = SimpleNamespace(**{**DEFAULTS, **options})
    metadata.frames_indices = own_code().sample_frames(processor, metadata)
    return metadata


def grid_of(count: int, width: int, height: int, **options: Any) -> tuple[int, int, int]:
    """(t, h, w) in patches of so many frames."""
    o = {**DEFAULTS, **options}
    size, patch = o["size"], o["patch_size"]
    rows, columns = own_code().smart_resize(
        height, width, patch * o["merge_size"], size["shortest_edge"], size["longest_edge"]
    )
    return -(-count // o["temporal_patch_size"]), rows // patch, columns // patch


def process(frames: Frames, rate: float, **options: Any) -> dict[str, Any]:
    """pixel_values_videos, video_grid_thw and second_per_grid_ts of one clip."""
    o = {**DEFAULTS, **options}
    metadata = sample(len(frames), rate, **options)
    taken = torch.from_numpy(frames)[metadata.frames_indices.long()].permute(0, 3, 1, 2)
    _, h, w = grid_of(len(taken), frames.shape[2], frames.shape[1], **options)
    return {
        **_patches(taken, h, w, o, own_code()),
        "second_per_grid_ts": [o["temporal_patch_size"] / metadata.sampled_fps],
    }


def sample_timed(total: int, rate: float, **options: Any) -> VideoMetadata:
    """As `sample`, for Qwen3-VL."""
    metadata = VideoMetadata(total_num_frames=total, fps=rate)
    o = {**TIMED, **options}
    asked = {name: o.pop(name) for name in ("fps", "num_frames")}
    processor = SimpleNamespace(**o, fps=2)
    found = own_code("qwen3_vl").sample_frames(processor, metadata, **asked)
    metadata.frames_indices = found
    return metadata


def timed_grid_of(count: int, width: int, height: int, **options: Any) -> tuple[int, int, int]:
    """As `grid_of`, for Qwen3-VL, without a bound for each frame."""
    o = {**TIMED, **options}
    size, patch, together = o["size"], o["patch_size"], o["temporal_patch_size"]
    rows, columns = own_code("qwen3_vl").smart_resize(
        count, height, width, together, patch * o["merge_size"],
        size["shortest_edge"], size["longest_edge"],
    )  # fmt: skip
    return -(-count // together), rows // patch, columns // patch


def process_timed(frames: Frames, rate: float, **options: Any) -> dict[str, Any]:
    """pixel_values_videos, video_grid_thw and video_metadata of one clip, for Qwen3-VL."""
    o = {**TIMED, **options}
    metadata = sample_timed(len(frames), rate, **options)
    taken = torch.from_numpy(frames)[torch.from_numpy(metadata.frames_indices)]
    _, h, w = timed_grid_of(len(taken), frames.shape[2], frames.shape[1], **options)
    made = _patches(taken.permute(0, 3, 1, 2), h, w, o, own_code("qwen3_vl"))
    return {**made, "video_metadata": metadata}


def _patches(
    taken: torch.Tensor, h: int, w: int, o: dict[str, Any], code: Any
) -> dict[str, torch.Tensor]:
    """Of uint8[frames, 3, height, width], resized to h * w patches."""
    rows, columns = h * o["patch_size"], w * o["patch_size"]
    if taken.shape[2:] != (rows, columns):
        taken = F.interpolate(taken.contiguous(), (rows, columns), mode="bicubic", antialias=True)
    mean, std = (torch.tensor(o[f"image_{name}"]) * 255.0 for name in ("mean", "std"))
    values = taken.float().sub_(mean[:, None, None]).div_(std[:, None, None])
    sizes = (o["patch_size"], o["merge_size"], o["temporal_patch_size"])
    patches, *grid = code.patchify(None, values[None], *sizes)
    return {"pixel_values_videos": patches[0], "video_grid_thw": torch.tensor([grid])}
