"""LLaVA 1.5 in encode workers: from processed pictures to embeddings."""

from __future__ import annotations

from typing import Any

import torch

from connectors.base import EC_TENSOR, Tensors


def encode(model: Any, batch: list[dict[str, torch.Tensor]]) -> list[Tensors]:
    """model: transformers' `LlavaForConditionalGeneration` without its language part; batch: what
    its image processor made of each picture. Embeddings [tokens, hidden] of each."""
    pixels = torch.cat([pixels["pixel_values"] for pixels in batch]).to(model.dtype)
    return [{EC_TENSOR: embeds} for embeds in model.get_image_features(pixels).pooler_output]
