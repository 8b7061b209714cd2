"""Decoder layers whose steps between matrix products run as fused kernels.

Layers are transformers' own code, so they are known by what they are made of: two RMSNorms in the
places where Llama has them, attention that rotates whole heads, a gated MLP with SiLU. What a layer
does beyond that cannot be seen; `LanguageModel` compares logits and lets go of layers that differ.
Never run on a GPU.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

import torch
from torch import nn

from services.engine.attention.batch import PagedBatch
from services.engine.attention.numba_runtime import team
from services.engine.attention.paged import backend_for, runs_triton

logger = logging.getLogger(__name__)
_LAYER = frozenset({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_HEAD_NORMS = frozenset({"q_norm", "k_norm"})
_MLP = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})


class FusedOps(Protocol):
    """The kernels, as functions of tensors: `fused_ops` on a GPU, `CpuOps` on a CPU."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """[..., width] → [..., width], contiguous; rows of x may lie apart, at one distance."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and x + residual. All [..., width]; residual contiguous."""

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up"""

    def rotate_and_write(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        layer: int,
        batch: PagedBatch,
    ) -> None:
        """Rotate the query in place, and write the rotated key and the value to the batch's slots.
        query [T, heads, dim], key [T, kv_heads, dim], value [T, kv_heads, v_dim], cos and sin
        [T, dim]."""


def ops_for(device: str, dtype: torch.dtype) -> FusedOps | None:
    """Triton's kernels on a GPU, Numba's on a CPU in bfloat16; None where there are none."""
    if runs_triton(device):
        from services.engine.model import fused_ops

        return fused_ops
    if device != "cpu" or dtype is not torch.bfloat16 or (parallel := team()) is None:
        return None
    try:
        from services.engine.model.cpu_ops import CpuOps
    except Exception as error:  # compiled on import; the layers' own code does as well
        logger.warning("layers have no fused kernels on this CPU: %s", error)
        return None
    return CpuOps(parallel)


class FusedLayers:
    """The layers of `model` that these kernels suit, using them until `release`."""

    def __init__(self, model: nn.Module, ops: FusedOps) -> None:
        self._layers = [module for module in model.modules() if _suits(module)]
        for layer in self._layers:
            # An instance's attribute wins over its class's method.
            layer.forward = _Fused(layer, ops)

    def __len__(self) -> int:
        return len(self._layers)

    def release(self) -> None:
        """Let the layers compute as their own code says."""
        for layer in self._layers:
            del layer.forward
        self._layers.clear()


class _Fused:
    """Computes one layer. Its own code does without a paged batch, as when the model is probed, and
    where rotary positions are of another form, as those that rotate a part of a head: the kernel
    would read past their end."""

    def __init__(self, layer: Any, ops: FusedOps) -> None:
        self._own = layer.forward
        self._layer = layer
        self._ops = ops

    def __call__(
        self, hidden_states: torch.Tensor, *args: Any, paged: PagedBatch | None = None, **more: Any
    ) -> Any:
        """hidden_states [1, T, hidden] → the same"""
        layer = self._layer
        cos, sin = more.get("position_embeddings") or (torch.empty(0), torch.empty(0))
        if paged is None or not _whole(cos, hidden_states, layer.self_attn.head_dim):
            return self._own(hidden_states, *args, paged=paged, **more)
        ops, rows = self._ops, hidden_states[0].contiguous()
        normed = self._norm(layer.input_layernorm, rows)
        attended = self._attention(layer.self_attn, normed, cos[0], sin[0], paged)
        second = layer.post_attention_layernorm
        normed, rows = ops.add_rms_norm(attended, rows, second.weight, second.variance_epsilon)
        active = ops.silu_mul(layer.mlp.gate_proj(normed), layer.mlp.up_proj(normed))
        return (rows + layer.mlp.down_proj(active)).unsqueeze(0)

    def _norm(self, module: Any, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, module.weight, module.variance_epsilon)

    def _attention(
        self, module: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """x [T, hidden], cos and sin [T, dim] → [T, hidden]"""
        query, key, value = (
            project(x).view(len(x), -1, module.head_dim)
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        if hasattr(module, "q_norm"):
            query, key = self._norm(module.q_norm, query), self._norm(module.k_norm, key)
        layer = int(module.layer_idx)
        self._ops.rotate_and_write(query, key, value, cos, sin, layer, batch)
        backend = batch.backend or backend_for(query.device)
        scale = float(module.scaling)
        out = backend.attend(query.transpose(0, 1), layer, batch, scale, None, None)
        return module.o_proj(out.flatten(1))  # type: ignore[no-any-return]


def _whole(cos: torch.Tensor, hidden: torch.Tensor, dim: int) -> bool:
    """Whether each token of hidden [1, T, width] has a factor of its type for each of a head's
    `dim`."""
    whole = cos.shape == (1, hidden.shape[1], dim) and cos.stride(-1) == 1
    return whole and cos.dtype is hidden.dtype


def _suits(layer: Any) -> bool:
    """Whether a module is a layer as `_Fused` computes it."""
    if _names(layer) != _LAYER:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in _HEAD_NORMS & _names(attention)]
    return (
        _names(attention) in (_PROJECTIONS, _PROJECTIONS | _HEAD_NORMS)
        and _names(mlp) == _MLP
        and _is_silu(mlp.act_fn)
        and all(_is_rms_norm(norm) for norm in norms)
        and all(hasattr(attention, name) for name in ("head_dim", "layer_idx", "scaling"))
        # Sinks and the like; and what squashes scores.
        and not any(True for _ in attention.parameters(recurse=False))
        and getattr(attention, "attn_logit_softcapping", None) is None
        and attention.head_dim % 2 == 0
    )


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _is_silu(module: nn.Module) -> bool:
    return isinstance(module, nn.SiLU) or type(module).__name__ == "SiLUActivation"


def _is_rms_norm(module: nn.Module) -> bool:
    """Of Llama's kind: the weight is a factor by itself, applied after rounding."""
    names = [name for name, _ in module.named_parameters()]
    return names == ["weight"] and hasattr(module, "variance_epsilon")
