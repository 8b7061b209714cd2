"""A vision tower on a GPU whose steps between matrix products run as fused kernels, and whose gated
MLPs have sizes that a GPU multiplies fast.

The parts are transformers' own code, so they are known by what they are made of, as in
`fused_layers`; `fuse` compares embeddings and leaves the tower as it was where they differ. On an
H100 a picture of 1080p took Qwen2.5-VL's tower 103 ms; 40 of them were products over 3420 columns,
which are no multiple of 8, and 30 were operations on each element of norms and rotations.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from services.engine.attention.segments import segmented_attention
from services.engine.model.fused_layers import is_gated, is_rms_norm
from services.engine.model.packed_linear import packable

logger = logging.getLogger(__name__)
_MULTIPLE = 64  # columns
_GATED = ("gate_proj", "up_proj", "down_proj")
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


class VisionOps(Protocol):
    """The kernels, as functions of tensors: see `fused_ops`."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor: ...

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor: ...

    def rotate_heads(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None: ...


def fuse(model: nn.Module, ops: VisionOps, embed: Callable[[], torch.Tensor]) -> int:
    """Have the parts of `model` that suit use the kernels; how many do, 0 if embeddings would
    differ. `embed` runs the tower over some pictures, and gives [tokens, width]."""
    expected = embed()
    parts = {module: part for module in model.modules() if (part := _part(module, ops)) is not None}
    for module, part in parts.items():
        module.forward = part  # an instance's attribute wins over its class's method
    if (wrong := _difference(embed, expected)) is not None:
        for module in parts:
            del module.forward
        logger.warning("the vision tower uses no fused kernels: %s", wrong)
        return 0
    # Only now: where embeddings differ, the layers' own code is needed again.
    for part in parts.values():
        if isinstance(part, _Gated):
            part.replace()
    logger.info("%d parts of the vision tower use fused kernels", len(parts))
    return len(parts)


def _difference(embed: Callable[[], torch.Tensor], expected: torch.Tensor) -> str | None:
    """What is wrong with the embeddings now; None if nothing is."""
    try:
        found = float((embed() - expected).float().norm() / expected.float().norm())
    except RuntimeError as error:  # of PyTorch: a part that computes something else, after all
        return str(error)
    if found <= _TOLERANCE[expected.dtype]:
        return None
    return f"embeddings would differ by {found:.2g}"


def _part(module: nn.Module, ops: VisionOps) -> Callable[..., torch.Tensor] | None:
    """What computes `module`, None if its own code does."""
    if is_rms_norm(module):
        return _Norm(module, ops)
    if is_gated(module) and all(map(packable, (getattr(module, name) for name in _GATED))):
        return _Gated(module, ops)
    return _Attention(module, ops) if _is_attention(module) else None


def _is_attention(module: nn.Module) -> bool:
    return (
        {name for name, _ in module.named_children()} == {"qkv", "proj"}
        and all(hasattr(module, name) for name in ("num_heads", "head_dim", "scaling"))
        and "position_embeddings" in inspect.signature(module.forward).parameters
    )


class _Norm:
    def __init__(self, module: Any, ops: VisionOps) -> None:
        self._weight, self._epsilon = module.weight, float(module.variance_epsilon)
        self._ops = ops

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self._weight, self._epsilon)


class _Gated:
    """silu(gate(x)) * up(x), and the product after it, with zeros in the columns that are added."""

    def __init__(self, module: Any, ops: VisionOps) -> None:
        self._module, self._ops = module, ops
        added = -module.gate_proj.out_features % _MULTIPLE
        gates = [_with_rows(layer, added) for layer in (module.gate_proj, module.up_proj)]
        self._weight = torch.cat([weight for weight, _ in gates])
        biases = [bias for _, bias in gates if bias is not None]
        self._bias = torch.cat(biases) if biases else None
        self._down = F.pad(module.down_proj.weight.detach(), (0, added))
        self._down_bias = module.down_proj.bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] → the same"""
        gate, up = F.linear(x, self._weight, self._bias).chunk(2, dim=-1)
        return F.linear(self._ops.silu_mul(gate, up), self._down, self._down_bias)

    def replace(self) -> None:
        """Let go of the layers in whose place this computes."""
        for name in _GATED:
            setattr(self._module, name, nn.Identity())


def _with_rows(layer: Any, added: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of a linear layer with so many outputs more, which are 0."""
    bias = None if layer.bias is None else F.pad(layer.bias.detach(), (0, added))
    return F.pad(layer.weight.detach(), (0, 0, 0, added)), bias


class _Attention:
    """Attention of patches within their segments."""

    def __init__(self, module: Any, ops: VisionOps) -> None:
        self._ops = ops
        self._qkv, self._proj = module.qkv, module.proj
        self._heads, self._dim = int(module.num_heads), int(module.head_dim)
        self._scale = float(module.scaling)

    def __call__(
        self,
        hidden_states: torch.Tensor,
        cu_seqlens: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        segments: Any,
        **_: Any,
    ) -> torch.Tensor:
        """hidden_states [T, hidden] → the same; `cu_seqlens` and `segments`: see
        `segmented_attention`."""
        heads = self._qkv(hidden_states).view(len(hidden_states), 3 * self._heads, self._dim)
        self._ops.rotate_heads(heads[:, : 2 * self._heads], *position_embeddings)
        parts = (part.transpose(0, 1)[None] for part in heads.split(self._heads, dim=1))
        query, key, value = parts
        out, _none = segmented_attention(
            self._proj, query, key, value, None,
            segments=segments, cu_seq_lens_q=cu_seqlens, scaling=self._scale,
        )  # fmt: skip
        attended: torch.Tensor = self._proj(out[0].flatten(1))
        return attended
