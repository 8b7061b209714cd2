"""How each family's vision model, or the part that hears, is called: what the processor made of
pictures or audio in, embeddings out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig

from connectors.base import EC_TENSOR, Tensors
from services.engine.attention import segments
from services.engine.model.audio import encode_qwen2_audio
from services.engine.model.embedding_layout import deepstack_name

Pixels = dict[str, torch.Tensor]
Encoder = Callable[[Any, list[Pixels]], list[Tensors]]
"""The vision model and what the processor made of each picture → each picture's embeddings."""


def encode_qwen(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL and its mixture of experts: patches of all pictures in one
    packed run."""
    output = model.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in batch]).to(model.dtype),
        torch.cat([pixels["image_grid_thw"] for pixels in batch]),
        segments=segments.Segments(),
    )
    entries = [{EC_TENSOR: embeds} for embeds in output.pooler_output]
    for level, features in enumerate(getattr(output, "deepstack_features", None) or ()):
        for entry, embeds in zip(entries, features, strict=True):
            entry[deepstack_name(level)] = embeds
    return entries


def _encode_gemma3(model: Any, batch: list[Pixels]) -> list[Tensors]:
    pixels = torch.cat([pixels["pixel_values"] for pixels in batch]).to(model.dtype)
    return [{EC_TENSOR: embeds} for embeds in model.get_image_features(pixels).pooler_output]


def _encode_gemma4(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """Patches of each picture, filled up to the most that one has."""
    output = model.get_image_features(
        torch.cat([pixels["pixel_values"] for pixels in batch]).to(model.dtype),
        torch.cat([pixels["image_position_ids"] for pixels in batch]),
    )
    return [{EC_TENSOR: embeds} for embeds in output.pooler_output]


def _encode_llava_onevision(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """One picture a run: each has its own number of crops."""
    return [{EC_TENSOR: _llava_picture(model, pixels)} for pixels in batch]


def _llava_picture(model: Any, pixels: Pixels) -> torch.Tensor:
    output = model.get_image_features(
        pixels["pixel_values"].to(model.dtype),
        pixels["image_sizes"],
        batch_num_images=torch.ones(1, dtype=torch.int64),
    )
    return output.pooler_output[0]  # type: ignore[no-any-return]


def _encode_internvl(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """Tiles of all pictures in one run."""
    tiles = [pixels["pixel_values"] for pixels in batch]
    output = model.get_image_features(torch.cat(tiles).to(model.dtype)).pooler_output
    parts = output.split([len(picture) for picture in tiles])
    return [{EC_TENSOR: embeds.flatten(0, 1)} for embeds in parts]


def _encode_mistral3(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """One picture a run: transformers' mask between pictures grows with the square of all."""
    return [{EC_TENSOR: _mistral3_picture(model, pixels)} for pixels in batch]


def _mistral3_picture(model: Any, pixels: Pixels) -> torch.Tensor:
    values = pixels["pixel_values"].to(model.dtype)
    return model.get_image_features(values, pixels["image_sizes"]).pooler_output[0]  # type: ignore[no-any-return]


def _encode_smolvlm(model: Any, batch: list[Pixels]) -> list[Tensors]:
    """Tiles of all pictures in one run, as those of one picture."""
    tiles = [pixels["pixel_values"] for pixels in batch]
    (output,) = model.get_image_features(torch.cat(tiles, 1).to(model.dtype)).pooler_output
    numbers = [picture.shape[1] for picture in tiles]
    parts = output.view(sum(numbers), -1, output.shape[-1]).split(numbers)
    return [{EC_TENSOR: embeds.flatten(0, 1)} for embeds in parts]


def _encode_qwen2_audio(model: Any, batch: list[Pixels]) -> list[Tensors]:
    return [{EC_TENSOR: embeds} for embeds in encode_qwen2_audio(model, batch)]


def _mistral3_options(config: PreTrainedConfig) -> dict[str, Any]:
    return {"patch_size": config.vision_config.patch_size * config.spatial_merge_size}


NOT_PACKED = frozenset({"gemma4"})
"""Families whose own code reads a weight that a packed layer no longer has."""

PICTURE_OPTIONS: Mapping[str, Callable[[PreTrainedConfig], dict[str, Any]]] = {
    "internvl": lambda config: {"crop_to_patches": True},
    "mistral3": _mistral3_options,
}
"""What a family's whole processor tells that of pictures, over the model directory's options."""

ENCODERS: Mapping[str, Encoder] = {
    "qwen2_vl": encode_qwen,
    "qwen2_5_vl": encode_qwen,
    "qwen3_vl": encode_qwen,
    "qwen3_vl_moe": encode_qwen,
    "gemma3": _encode_gemma3,
    "gemma4": _encode_gemma4,
    "internvl": _encode_internvl,
    "qwen2_audio": _encode_qwen2_audio,
    "llava_onevision": _encode_llava_onevision,
    "mistral3": _encode_mistral3,
    "smolvlm": _encode_smolvlm,
}
