"""Paged attention as transformers' models call it.

`register()` puts it into transformers' `AttentionInterface` under `PAGED`. Models then call
`paged_attention` in every layer with [1, heads, T, dim] tensors and the step's `PagedBatch` as
keyword `paged`. A mask function is not registered: transformers builds no mask for it then, and
visibility is computed here from positions, spans and windows.

Who computes is an `AttentionBackend`: `TritonAttention` on CUDA, `CpuAttention` on CPUs,
`TorchAttention` elsewhere.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from transformers import AttentionInterface

from services.engine.attention.batch import AttentionBackend, PagedBatch
from services.engine.attention.torch_attention import TorchAttention

PAGED = "triptych_paged"


def register() -> None:
    """Make `PAGED` known to transformers. Safe to call more than once."""
    AttentionInterface.register(PAGED, paged_attention)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: PagedBatch,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write this step's keys and values, then attend over each request's whole context.

    query [1, heads, T, k_dim], key [1, kv_heads, T, k_dim], value [1, kv_heads, T, v_dim];
    `s_aux` [heads] are attention sinks. Returns [1, T, heads, v_dim].
    """
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    backend = paged.backend or backend_for(query.device)
    # Written first: attention reads this step's keys in the cache, as all others.
    backend.write(key[0], value[0], layer, paged)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return backend.attend(query[0], layer, paged, scale, softcap, s_aux).unsqueeze(0), None


def runs_triton(device: str | torch.device) -> bool:
    """Whether Triton's kernels run on `device`."""
    return torch.device(device).type == "cuda" and find_spec("triton") is not None


@cache
def backend_for(device: torch.device) -> AttentionBackend:
    """Triton kernels on CUDA where Triton is installed, a kernel for decoding on a CPU where Numba
    is, plain PyTorch elsewhere."""
    if device.type == "cpu" and find_spec("numba") is not None:
        from services.engine.attention.cpu_decode import CpuAttention

        return CpuAttention()
    if not runs_triton(device):
        return TorchAttention()
    from services.engine.attention.triton_backend import TritonAttention

    return TritonAttention.for_device(device)
