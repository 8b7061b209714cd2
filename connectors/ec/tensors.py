"""An entry's tensors as bytes that lie together in a region."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from connectors.base import EC_TENSOR, Tensors
from connectors.ec.space import aligned
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
    """`TransferError` unless every tensor is one, the main one is among them, and they lie side by
    side."""
    for tensor in tensors:
        dtype = _dtypes().get(tensor.dtype)
        size = math.prod(tensor.shape)
        if dtype is None or size <= 0 or size * dtype.itemsize != tensor.nbytes:
            raise TransferError(f"EC entry {mm_hash[:16]}: {tensor} is no tensor")
    names = [tensor.name for tensor in tensors]
    if EC_TENSOR not in names or len(set(names)) != len(names):
        raise TransferError(f"EC entry {mm_hash[:16]}: {names} are no entry")
    start, end = span(tensors)
    if end - start > sum(aligned(tensor.nbytes) for tensor in tensors):
        raise TransferError(f"EC entry {mm_hash[:16]}: its tensors do not lie together")


def views(memory: torch.Tensor, tensors: Sequence[ECTensor]) -> Tensors:
    """The tensors in `memory`, which begins where the entry begins."""
    start, _ = span(tensors)
    dtypes = _dtypes()
    return {
        tensor.name: memory[tensor.offset - start :][: tensor.nbytes]
        .view(dtypes[tensor.dtype])
        .view(tensor.shape)
        for tensor in tensors
    }


def copies(memory: torch.Tensor, tensors: Sequence[ECTensor]) -> Tensors:
    """As `views`, in memory of their own."""
    return {name: tensor.clone() for name, tensor in views(memory, tensors).items()}
