"""The vision part of a model, or the part that hears: pictures, clips or audio in, embeddings out,
several a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from connectors.base import EC_TENSOR, Tensors
from protocol.errors import ConfigError, InvalidRequest, TriptychError
from protocol.plugins import find_plugin
from protocol.types import EncodeItem
from services.engine.attention import segments
from services.engine.containment import contained
from services.engine.model.audio import AudioProcessor, encode_qwen2_audio, positions_of
from services.engine.model.clip_processor import ClipProcessor
from services.engine.model.embedding_layout import deepstack_name
from services.engine.model.loader import has_audio, has_vision, load_part, parameter_bytes
from services.engine.model.packed_linear import InputsSeen, pack, packing
from services.engine.model.patch_product import multiply_patches
from services.engine.model.picture_processor import picture_processor
from services.engine.scheduling.seams import Prepared
from services.frontend.clips.readers import ClipReaders
from services.frontend.families.timed_clips import clips_of
from services.frontend.media.image import load_rgb

log = logging.getLogger(__name__)

Pixels = dict[str, torch.Tensor]
Encoder = Callable[[Any, list[Pixels]], list[Tensors]]
"""The vision model and what the processor made of each picture → each picture's embeddings."""


class VisionModel:
    """Weights of the vision part only, with the media processor that goes with them."""

    def __init__(
        self,
        model_dir: Path,
        dtype: torch.dtype,
        device: str,
        max_pixels: int,
        weight_layout: str = "plain",
        readers: ClipReaders | None = None,
    ) -> None:
        """`max_pixels` of a picture; `weight_layout`: plain, packed or auto, see
        `packed_linear.packing`; `readers`: of clips, which this then owns."""
        self._max_pixels = max_pixels
        self._model = load_part(model_dir, "vision", dtype, device)
        self.parameter_bytes = parameter_bytes(self._model)
        config = self._model.config
        self._processor: Any = picture_processor(model_dir) if has_vision(config) else None
        self._device = device
        kind = config.model_type
        encoder = _ENCODERS.get(kind) or find_plugin("encoders", kind)
        if encoder is None:
            raise ConfigError(f"--model: no encoder is known for model type '{kind}'")
        self._encode: Encoder = encoder
        self._options = _OPTIONS[kind](config) if kind in _OPTIONS else {}
        self._readers = readers
        self._clips = self._clip_processor(model_dir, kind)
        self._audio = AudioProcessor(model_dir, readers) if has_audio(config) else None
        if self._encode is _encode_qwen:
            segments.register()
            self._model.model.visual.config._attn_implementation = segments.SEGMENTED
        product = packing(weight_layout, dtype, device) if kind not in _PLAIN else None
        if product is not None:
            # Nothing is merged: a picture has so many patches that one product is no faster.
            pack(self._model, InputsSeen(self._model), product)
            multiply_patches(self._model)

    def _clip_processor(self, model_dir: Path, kind: str) -> ClipProcessor | None:
        """A model whose clips are not known here still has its pictures."""
        if self._readers is None or self._encode is not _encode_qwen:
            return None
        try:
            return ClipProcessor(model_dir, self._readers, clips_of(kind).grid_class)
        except ConfigError as error:
            log.warning("clips are refused: %s", error)
            return None

    def close(self) -> None:
        """No picture or clip is being prepared any more, or is given up."""
        if self._readers is not None:
            self._readers.close()

    @property
    def module(self) -> torch.nn.Module:
        return self._model  # type: ignore[no-any-return]

    def prepare(self, item: EncodeItem) -> Prepared:
        """Decode one picture, clip or piece of audio, and resize it, or make its spectrum; safe to
        call from several threads at once.

        `InvalidRequest` if the bytes are none or the processor refuses them.
        """
        if max(item.pixels or (0,)) > self._max_pixels:
            raise InvalidRequest(f"a picture must not become larger than {self._max_pixels} pixels")
        if item.modality == "video" and self._clips is not None and item.data is not None:
            pixels = self._clips.patches(item)
        elif item.modality == "audio" and self._audio is not None and item.data is not None:
            pixels = self._audio.spectrum(item)
        elif item.modality == "image" and self._processor is not None and item.data is not None:
            pixels = self._picture(item, item.data)
        else:
            raise InvalidRequest(f"this encoder encodes no {item.modality}")
        return Prepared(item, pixels, _patches(pixels))

    def silence(self) -> Prepared | None:
        """The longest audio; None for a model without."""
        if self._audio is None:
            return None
        spectrum = self._audio.silence()
        return Prepared(EncodeItem("silence", "audio", 1), spectrum, _patches(spectrum))

    def _picture(self, item: EncodeItem, data: bytes) -> Pixels:
        image = load_rgb(data, max_pixels=self._max_pixels)
        options = {**self._options, **_size(item)}
        try:
            features = self._processor(images=[image], return_tensors="pt", **options)
        except ValueError as error:
            raise InvalidRequest(f"the media processor refused the picture: {error}") from None
        return {name: value for name, value in features.items() if torch.is_tensor(value)}

    def encode(self, batch: Sequence[Prepared]) -> list[Tensors | TriptychError]:
        """Embeddings of each picture, or why one cannot be used."""
        return contained(self._run, batch, lambda _, error: [error])

    @torch.inference_mode()
    def _run(self, batch: Sequence[Prepared]) -> list[Tensors | TriptychError]:
        entries = self._encode(self._model, [self._move(p.pixels) for p in batch])
        return [
            _checked(prepared.item, tensors)
            for prepared, tensors in zip(batch, entries, strict=True)
        ]

    def _move(self, pixels: Pixels) -> Pixels:
        return {name: value.to(self._device) for name, value in pixels.items()}


def _size(item: EncodeItem) -> dict[str, Any]:
    """The processor's option for a picture with bounds of its own."""
    if item.pixels is None:
        return {}
    least, most = item.pixels
    return {"size": {"shortest_edge": least, "longest_edge": most}}


def _patches(pixels: Pixels) -> int:
    if "input_features" in pixels:
        return positions_of(pixels)
    grid = pixels.get("image_grid_thw")
    if grid is not None:
        return int(grid.prod())
    return pixels["pixel_values"].numel() // (14 * 14 * 3)


def _checked(item: EncodeItem, tensors: Tensors) -> Tensors | TriptychError:
    rows = tensors[EC_TENSOR].shape[0]
    if rows != item.length:
        return InvalidRequest(
            f"media item {item.mm_hash[:16]}: the encoder made {rows} embeddings, its placeholder "
            f"span has {item.length} tokens",
            code="embedding_length_mismatch",
        )
    return tensors


def _encode_qwen(model: Any, batch: list[Pixels]) -> list[Tensors]:
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


_PLAIN = frozenset({"gemma4"})
"""Families whose own code reads a weight that a packed layer no longer has."""

_OPTIONS: Mapping[str, Callable[[PreTrainedConfig], dict[str, Any]]] = {
    "internvl": lambda config: {"crop_to_patches": True},
    "mistral3": _mistral3_options,
}
"""What a family's whole processor tells that of pictures, whatever the model directory says."""

_ENCODERS: Mapping[str, Encoder] = {
    "qwen2_vl": _encode_qwen,
    "qwen2_5_vl": _encode_qwen,
    "qwen3_vl": _encode_qwen,
    "qwen3_vl_moe": _encode_qwen,
    "gemma3": _encode_gemma3,
    "gemma4": _encode_gemma4,
    "internvl": _encode_internvl,
    "qwen2_audio": _encode_qwen2_audio,
    "llava_onevision": _encode_llava_onevision,
    "mistral3": _encode_mistral3,
    "smolvlm": _encode_smolvlm,
}
