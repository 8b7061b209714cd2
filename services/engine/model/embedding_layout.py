"""What the embeddings of one model look like."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from connectors.base import EC_TENSOR, Tensors
from protocol.errors import TransferError
from services.engine.containment import is_out_of_memory
from services.engine.scheduling.seams import length_mismatch


def deepstack_name(level: int) -> str:
    """The tensor that is added behind an early layer."""
    return f"deepstack_{level:02d}"


@dataclass(frozen=True)
class EmbeddingLayout:
    """An entry's tensors, each [tokens, width] of `dtype`: the main one and `deepstack` others.
    They are used on `device`."""

    width: int
    deepstack: int
    dtype: torch.dtype
    device: str = "cpu"

    @property
    def names(self) -> tuple[str, ...]:
        return EC_TENSOR, *(deepstack_name(level) for level in range(self.deepstack))

    @property
    def token_bytes(self) -> int:
        """Of one media token in all tensors."""
        return (1 + self.deepstack) * self.width * self.dtype.itemsize

    def taken(self, mm_hash: str, tensors: Tensors, tokens: int) -> Tensors:
        """`fitted`, on the model's device. `TransferError` also if that has no memory left: it
        concerns the requests of this entry, and no others."""
        fitted = self.fitted(mm_hash, tensors, tokens)
        try:
            return {name: tensor.to(self.device) for name, tensor in fitted.items()}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise TransferError(
                f"media item {mm_hash[:16]}: no memory is left for its embeddings on {self.device}"
            ) from error

    def fitted(self, mm_hash: str, tensors: Tensors, tokens: int) -> Tensors:
        """An entry as this model takes it. vLLM puts all tensors side by side into the main one.

        `TransferError` if they are none of this model, or not of so many tokens.
        """
        rows = {len(tensor) if tensor.ndim == 2 else -1 for tensor in tensors.values()}
        if len(rows) == 1 and rows.isdisjoint({-1, tokens}):
            raise length_mismatch(mm_hash, rows.pop(), tokens)
        joined = tensors.get(EC_TENSOR)
        whole = (tokens, len(self.names) * self.width)
        if len(tensors) == 1 and joined is not None and tuple(joined.shape) == whole:
            tensors = dict(zip(self.names, joined.split(self.width, dim=1), strict=True))
        shapes = {name: (*tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        wanted = dict.fromkeys(self.names, (tokens, self.width, self.dtype))
        if shapes != wanted:
            raise TransferError(
                f"media item {mm_hash[:16]}: the embeddings are {shapes}, this model needs {wanted}"
            )
        return tensors
