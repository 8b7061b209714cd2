"""Decode steps as CUDA graphs. Never run on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from services.engine.attention.batch import AttentionBackend
from services.engine.attention.paged import runs_triton
from services.engine.model.decode_graphs import Capture, Replay

_WARM_RUNS = 2  # compile kernels and let libraries choose algorithms, none of which is captured


class CudaCapture:
    """A `Capture`; its graphs share one pool of memory, for they run one at a time."""

    def __init__(self, device: torch.device, backend: AttentionBackend) -> None:
        self._device = device
        self._backend = backend
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def backend(self) -> AttentionBackend:
        return self._backend

    def __call__(self, run: Callable[[], None]) -> Replay:
        before, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        # A capture that fails leaves its stream the current one: this goes back to the one before.
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):
                run()
            # Threads of the connectors may use the device meanwhile: only this one is watched.
            with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                run()
        before.wait_stream(stream)
        return graph.replay


def capture_on(device: str, *, enforce_eager: bool) -> Capture | None:
    """What records decode steps on `device`; None where they run eagerly: on a CPU, without
    Triton's kernels, whose work follows tensors, and by `--enforce-eager`."""
    if enforce_eager or not runs_triton(device):
        return None
    found = torch.device(device)
    from services.engine.attention.triton_backend import TritonAttention

    backend = replace(TritonAttention.for_device(found), captured=True)
    return CudaCapture(found, backend)
