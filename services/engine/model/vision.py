"""The vision part of a model, or the part that hears: pictures, clips or audio in, embeddings out,
several a run."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from connectors.base import EC_TENSOR, Tensors
from protocol.errors import ConfigError, InvalidRequest, TriptychError
from protocol.plugins import find_plugin
from protocol.types import EncodeItem
from services.engine.attention import segments
from services.engine.attention.paged import runs_triton
from services.engine.containment import contained
from services.engine.model.audio import AudioProcessor, positions_of
from services.engine.model.clip_processor import ClipProcessor
from services.engine.model.cpu_linear import multiply_patches
from services.engine.model.fused_vision import fuse
from services.engine.model.loader import has_audio, has_vision, load_part, parameter_bytes
from services.engine.model.packed_linear import InputsSeen, pack, packing
from services.engine.model.picture_processor import picture_processor
from services.engine.model.vision_encoders import (
    ENCODERS,
    NOT_PACKED,
    PICTURE_OPTIONS,
    Encoder,
    Pixels,
    encode_qwen,
)
from services.engine.scheduling.seams import NotFinite, Prepared
from services.frontend.clips.readers import ClipReaders
from services.frontend.families.timed_clips import clips_of
from services.frontend.media.image import load_rgb

log = logging.getLogger(__name__)
_TRIALS = ((300, 200), (90, 130))  # pixels of pictures with windows of several sizes


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
        *,
        fused: bool = True,
    ) -> None:
        """`max_pixels` of a picture; `weight_layout`: plain, packed or auto, see
        `packed_linear.packing`; `readers`: of clips, which this then owns; `fused`: a GPU may use
        fused kernels."""
        self._max_pixels = max_pixels
        self._model = load_part(model_dir, "vision", dtype, device)
        self.parameter_bytes = parameter_bytes(self._model)
        config = self._model.config
        self._processor: Any = picture_processor(model_dir, dtype) if has_vision(config) else None
        self._device = device
        kind = config.model_type
        self._encode = _encoder(kind)
        self._options = PICTURE_OPTIONS[kind](config) if kind in PICTURE_OPTIONS else {}
        self._readers = readers
        self._clips = self._clip_processor(model_dir, kind)
        self._audio = AudioProcessor(model_dir, readers) if has_audio(config) else None
        self._speed_up(weight_layout if kind not in NOT_PACKED else "plain", dtype, fused=fused)

    def _speed_up(self, weight_layout: str, dtype: torch.dtype, *, fused: bool) -> None:
        """Compute what the family's own code computes by faster means."""
        if self._encode is encode_qwen:
            segments.register()
            self._model.model.visual.config._attn_implementation = segments.SEGMENTED
        product = packing(weight_layout, dtype, self._device)
        if product is not None:
            # Nothing is merged: a picture has so many patches that one product is no faster.
            pack(self._model, InputsSeen(self._model), product)
            multiply_patches(self._model)
        if fused and self._encode is encode_qwen and runs_triton(self._device):
            self._fuse()

    def _fuse(self) -> None:
        """Use fused kernels for a tower whose attention goes by segments."""
        from services.engine.model import fused_ops

        # `prepare` refuses a picture of more pixels.
        sizes = [(w, h) for w, h in _TRIALS if w * h <= self._max_pixels]
        trials = [self.prepare(_drawn(*size)) for size in sizes]
        if not trials:
            return

        @torch.inference_mode()
        def embed() -> torch.Tensor:
            batch = [self._move(trial.pixels) for trial in trials]
            return torch.cat([found[EC_TENSOR] for found in self._encode(self._model, batch)])

        fuse(self._model, fused_ops, embed)
        torch.cuda.empty_cache()  # of the layers that were merged

    def _clip_processor(self, model_dir: Path, kind: str) -> ClipProcessor | None:
        """A model whose clips are not known here still has its pictures."""
        if self._readers is None or self._encode is not encode_qwen:
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
        return Prepared(item, self._lean(pixels), _patches(pixels))

    def _lean(self, pixels: Pixels) -> Pixels:
        """For a GPU: patches of the model's type, half as many bytes as the processor makes, from
        where they are copied without a wait."""
        if torch.device(self._device).type != "cuda":
            return pixels
        patches = {n: v.to(self._model.dtype) for n, v in pixels.items() if n == "pixel_values"}
        return {name: value.pin_memory() for name, value in (pixels | patches).items()}

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
        return contained(self.encode_at_once, batch, lambda _, error: [error])

    @torch.inference_mode()
    def encode_at_once(self, batch: Sequence[Prepared]) -> list[Tensors | TriptychError]:
        """As `encode`, in one run, whose exception is raised."""
        entries = self._encode(self._model, [self._move(p.pixels) for p in batch])
        return [
            _checked(prepared.item, tensors, finite)
            for prepared, tensors, finite in zip(batch, entries, _finite(entries), strict=True)
        ]

    def _move(self, pixels: Pixels) -> Pixels:
        # The pixels may go at once: PyTorch keeps pinned memory until the copies from it are done.
        return {name: value.to(self._device, non_blocking=True) for name, value in pixels.items()}


def _encoder(kind: str) -> Encoder:
    """`ConfigError` if none is known for a model type."""
    encoder = ENCODERS.get(kind) or find_plugin("encoders", kind)
    if encoder is None:
        raise ConfigError(f"--model: no encoder is known for model type '{kind}'")
    return encoder


def _drawn(width: int, height: int) -> EncodeItem:
    """A picture of so many pixels."""
    colours = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(colours).save(data, "PNG")
    return EncodeItem("trial", "image", 1, data=data.getvalue())


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


def _finite(entries: Sequence[Tensors]) -> list[bool]:
    """Of each entry, whether all its numbers are finite: the device is waited for once."""
    flags = [
        torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).all()
        for tensors in entries
    ]
    return torch.stack(flags).tolist()


def _checked(item: EncodeItem, tensors: Tensors, finite: bool) -> Tensors | TriptychError:
    # Returned, not raised: `contained` would run the other pictures again.
    rows = tensors[EC_TENSOR].shape[0]
    if rows != item.length:
        return InvalidRequest(
            f"media item {item.mm_hash[:16]}: the encoder made {rows} embeddings, its placeholder "
            f"span has {item.length} tokens",
            code="embedding_length_mismatch",
        )
    if not finite:  # kept, they would spoil every request with this picture
        return NotFinite(
            f"media item {item.mm_hash[:16]}: the encoder's embeddings are not finite numbers"
        )
    return tensors
