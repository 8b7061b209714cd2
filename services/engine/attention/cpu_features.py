"""What this CPU computes well."""

from __future__ import annotations

import torch


def onednn_has_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU (from AVX-512 on). Where it does not, PyTorch
    does, at a quarter of the rate of float32."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
