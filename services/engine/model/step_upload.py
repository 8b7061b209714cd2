"""The integers of one step on their way from the host to the device, and when it has done the step.

A copy to a GPU costs several microseconds on the host, and one from ordinary memory waits until the
device has done all that it was asked before. So all arrays lie in one pinned buffer and move by one
copy, which the host does not wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from connectors.kv.base import Fence

Arrays = Mapping[str, NDArray[Any]]
_ALIGNMENT = 16  # bytes: for pointers that have it Triton compiles wider loads


def upload(arrays: Arrays, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors of the same types and shapes on `device`; on a CPU they share the arrays' memory."""
    if device.type == "cpu":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    # PyTorch gives pinned memory out again only once the copies from it are done.
    host = torch.empty(packed_bytes(arrays), dtype=torch.uint8, pin_memory=True)
    pack(arrays, host)
    return views(arrays, host.to(device, non_blocking=True))


def packed_bytes(arrays: Arrays) -> int:
    return max((end for _, _, end in _places(arrays)), default=0)


def pack(arrays: Arrays, host: torch.Tensor) -> None:
    """Copy the arrays into `host`, uint8[packed_bytes]."""
    memory = host.numpy()
    for name, first, end in _places(arrays):
        memory[first:end].view(arrays[name].dtype).reshape(arrays[name].shape)[...] = arrays[name]


def views(arrays: Arrays, packed: torch.Tensor) -> dict[str, torch.Tensor]:
    """The arrays as tensors inside `packed`, a copy of what `pack` has written."""
    return {
        name: packed[first:end].view(_DTYPES[arrays[name].dtype]).view(arrays[name].shape)
        for name, first, end in _places(arrays)
    }


_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.bool_): torch.bool,
}


def _places(arrays: Arrays) -> Iterator[tuple[str, int, int]]:
    """First and past-the-end byte of each array in the buffer."""
    first = 0
    for name, array in arrays.items():
        yield name, first, first + array.nbytes
        first += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


class CudaFence:
    """An event on the stream that the engine computes on."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        return bool(self._event.query())


def fence_on(device: str) -> Fence | None:
    """Passes once all that was asked of `device` before is done; None on a CPU, which computes
    within the call."""
    found = torch.device(device)
    return CudaFence(found) if found.type == "cuda" else None
