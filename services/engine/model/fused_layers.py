"""Decoder layers whose steps between matrix products run as fused kernels.

Layers are transformers' own code, so they are known by what they are made of: two RMSNorms in the
places where Llama has them, attention that rotates whole heads, a gated MLP with SiLU. What a layer
does beyond that cannot be seen; `LanguageModel` compares logits and lets go of layers that differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from services.engine.attention.batch import PagedBatch
from services.engine.attention.numba_runtime import compiled
from services.engine.attention.paged import backend_for, runs_triton
from services.engine.model.packed_linear import packable
from services.engine.model.shared_linear import SharedLinear

logger = logging.getLogger(__name__)
_LAYER = frozenset({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"})
_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
_HEAD_NORMS = ("q_norm", "k_norm")
_MLP = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})


class FusedOps(Protocol):
    """The kernels, as functions of tensors: `fused_ops` on a GPU, `CpuOps` on a CPU."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """[..., width] → [..., width], contiguous; rows of x may be parts of longer ones."""

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and x + residual. All [..., width]; residual contiguous."""

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, [T, width] both; rows may be parts of longer ones"""

    def add_product(
        self, x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """rows + x Wᵀ, which may take the place of rows. x [T, in], weight [out, in], rows
        [T, out]."""

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
    if device != "cpu" or dtype is not torch.bfloat16:
        return None

    def make(parallel: Any) -> FusedOps:
        from services.engine.model.cpu_ops import CpuOps  # compiled on import

        return CpuOps(parallel)

    return compiled(make, "layers between products")


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
        self._ops = ops
        # A module looks its parts up by name in three places, which takes as long as a kernel.
        # Packed and adapted layers are in place when `LanguageModel` makes this, so once will do.
        attention, mlp = layer.self_attn, layer.mlp
        self._first, self._second = (
            _Norm.of(norm) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self._of_heads = [
            _Norm.of(getattr(attention, name)) if hasattr(attention, name) else None
            for name in _HEAD_NORMS
        ]
        self._projections = SharedLinear.together(
            [attention.q_proj, attention.k_proj, attention.v_proj]
        )
        self._out, self._down = attention.o_proj.forward, _Down.of(mlp.down_proj, ops)
        self._gates = SharedLinear.together([mlp.gate_proj, mlp.up_proj])
        self._dim, self._number = int(attention.head_dim), int(attention.layer_idx)
        self._scale = float(attention.scaling)

    def __call__(
        self, hidden_states: torch.Tensor, *args: Any, paged: PagedBatch | None = None, **more: Any
    ) -> Any:
        """hidden_states [1, T, hidden] → the same"""
        cos, sin = more.get("position_embeddings") or (torch.empty(0), torch.empty(0))
        if paged is None or not _whole(cos, hidden_states, self._dim):
            return self._own(hidden_states, *args, paged=paged, **more)
        ops, rows = self._ops, hidden_states[0].contiguous()
        normed = ops.rms_norm(rows, *self._first)
        attended = self._attention(normed, cos[0], sin[0], paged)
        normed, rows = ops.add_rms_norm(attended, rows, *self._second)
        active = ops.silu_mul(*self._gates(normed))
        # `rows` is the sum that `add_rms_norm` has made: adding in place changes no caller's.
        return self._down(active, rows).unsqueeze(0)

    def _attention(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: PagedBatch
    ) -> torch.Tensor:
        """x [T, hidden], cos and sin [T, dim] → [T, hidden]"""
        parts = (part.view(len(x), -1, self._dim) for part in self._projections(x))
        query, key, value = parts
        of_query, of_key = self._of_heads
        query = query if of_query is None else self._ops.rms_norm(query, *of_query)
        key = key if of_key is None else self._ops.rms_norm(key, *of_key)
        self._ops.rotate_and_write(query, key, value, cos, sin, self._number, batch)
        backend = batch.backend or backend_for(query.device)
        heads_first = query.transpose(0, 1)
        # Without softcap and sinks: `_suits` refuses layers that have them.
        out = backend.attend(heads_first, self._number, batch, self._scale, None, None)
        return self._out(out.flatten(1))  # type: ignore[no-any-return]


class _Down(NamedTuple):
    """The last product of a layer, added to what the layer was given."""

    forward: Callable[[torch.Tensor], torch.Tensor]
    weight: torch.Tensor | None
    ops: FusedOps

    @staticmethod
    def of(layer: Any, ops: FusedOps) -> _Down:
        alone = packable(layer) and layer.bias is None
        return _Down(layer.forward, layer.weight if alone else None, ops)

    def __call__(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.weight is None:
            return rows.add_(self.forward(x))
        return self.ops.add_product(x, self.weight, rows)


class _Norm(NamedTuple):
    weight: torch.Tensor
    epsilon: float

    @staticmethod
    def of(module: Any) -> _Norm:
        return _Norm(module.weight, float(module.variance_epsilon))


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
    norms += [getattr(attention, name) for name in _HEAD_NORMS if hasattr(attention, name)]
    return (
        _names(attention) in (_PROJECTIONS, _PROJECTIONS.union(_HEAD_NORMS))
        and is_gated(mlp)
        and all(is_rms_norm(norm) for norm in norms)
        and all(hasattr(attention, name) for name in ("head_dim", "layer_idx", "scaling"))
        # Sinks and the like; and what squashes scores.
        and not any(True for _ in attention.parameters(recurse=False))
        and getattr(attention, "attn_logit_softcapping", None) is None
        and attention.head_dim % 2 == 0
        and not _scales_by_position(attention)
    )


def _scales_by_position(attention: Any) -> bool:
    """Whether queries are multiplied by a factor that grows with their position, as Ministral 3's
    are: it is 1 for so long (16,384 tokens) that only the trial's far positions would show it."""
    rotary = getattr(getattr(attention, "config", None), "rope_parameters", None) or {}
    return "llama_4_scaling_beta" in rotary


def _names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _is_silu(module: nn.Module) -> bool:
    return isinstance(module, nn.SiLU) or type(module).__name__ == "SiLUActivation"


def is_gated(module: Any) -> bool:
    """Whether a module is an MLP whose hidden values are gated by SiLU."""
    return _names(module) == _MLP and _is_silu(module.act_fn)


def is_rms_norm(module: nn.Module) -> bool:
    """Of Llama's kind: the weight is a factor by itself, applied after rounding."""
    names = [name for name, _ in module.named_parameters()]
    return names == ["weight"] and hasattr(module, "variance_epsilon")
