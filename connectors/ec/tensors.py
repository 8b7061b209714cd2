"""An entry's tensors as bytes that lie together in a region."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from connectors.base import Tensors
from connectors.ec.space import ALIGNMENT
from connectors.messages import ECTensor
from protocol.errors import TransferError


def _dtypes() -> dict[str, torch.dtype]:
    """Those that embeddings have, by name."""
    known = (torch.float32, torch.float16, torch.bfloat16)
    return {str(dtype).removeprefix("torch."): dtype for dtype in known}


def span(tensors: Sequence[ECTensor]) -> tuple[int, int]:
    """First byte and end of an entry in the producer's region."""
    start = min(tensor.offset for tensor in tensors)
    return start, max(tensor.offset + tensor.nbytes for tensor in tensors)


def check(mm_hash: str, tensors: Sequence[ECTensor]) -> None:
    """`TransferError` unless every tensor is one and they lie side by side."""
    total = sum(tensor.nbytes for tensor in tensors)
    length = span(tensors)[1] - span(tensors)[0] if tensors else 0
    for tensor in tensors:
        dtype = _dtypes().get(tensor.dtype)
        size = 1
        for length in tensor.shape:
            size *= length if length > 0 else 0
        if dtype is None or size <= 0 or size * dtype.itemsize != tensor.nbytes:
            raise TransferError(f"EC entry {mm_hash[:16]}: {tensor} is no tensor")
    if not tensors or length > total + ALIGNMENT * len(tensors):
        raise TransferError(f"EC entry {mm_hash[:16]}: its tensors do not lie together")


def copies(memory: torch.Tensor, tensors: Sequence[ECTensor]) -> Tensors:
    """The tensors in `memory`, which begins where the entry begins, as memory of their own."""
    start, _ = span(tensors)
    dtypes = _dtypes()
    return {
        tensor.name: memory[tensor.offset - start :][: tensor.nbytes]
        .clone()
        .view(dtypes[tensor.dtype])
        .view(tensor.shape)
        for tensor in tensors
    }
