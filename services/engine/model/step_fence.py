"""When a device has done what a step has asked of it."""

from __future__ import annotations

import torch

from connectors.kv.base import Fence


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
