"""An entry's tensors as bytes that lie together in a region."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from connectors.base import EC_TENSOR, Tensors
from connectors.ec.range_allocator import aligned
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
    """`TransferError` unless every tensor is one of embeddings, [tokens, width], the main one is
    among them, and they lie side by side where their dtypes may."""
    names = [tensor.name for tensor in tensors]
    if EC_TENSOR not in names or len(set(names)) != len(names):
        raise TransferError(f"EC entry {mm_hash[:16]} has unknown tensors: {names[:8]}")
    start, end = span(tensors)
    for tensor in tensors:
        if not _possible(tensor, start):
            raise TransferError(f"EC entry {mm_hash[:16]} holds no embeddings: {tensor}")
    # They are read as one range: a gap, of any size that a producer names, would be read as well.
    if end - start > sum(aligned(tensor.nbytes) for tensor in tensors):
        raise TransferError(f"the tensors of EC entry {mm_hash[:16]} are not contiguous")


def _possible(tensor: ECTensor, start: int) -> bool:
    dtype, size = _dtypes().get(tensor.dtype), math.prod(tensor.shape)
    if dtype is None or len(tensor.shape) != 2 or size <= 0:
        return False
    # Both in the producer's memory and in ours, where the entry begins at a multiple of any dtype.
    fits = not tensor.offset % dtype.itemsize and not (tensor.offset - start) % dtype.itemsize
    return fits and size * dtype.itemsize == tensor.nbytes


def fill(memory: torch.Tensor, offset: int, tensors: Tensors) -> list[ECTensor]:
    """Copy an entry into `memory` (uint8[nbytes]) from `offset` on; where its tensors lie."""
    described = []
    for name, tensor in tensors.items():
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        memory[offset : offset + flat.numel()] = flat
        dtype = str(tensor.dtype).removeprefix("torch.")
        described.append(ECTensor(name, tuple(tensor.shape), dtype, offset, flat.numel()))
        offset += aligned(flat.numel())
    return described


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
