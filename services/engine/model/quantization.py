"""Weights in fewer bits, by torchao: each linear layer's weight is stored quantized, its inputs and
outputs stay in the engine's dtype.

What is between the layers, the embeddings and the head stay as they are: they cost accuracy most.
Checkpoints whose weights are quantized already are transformers' to read, by libraries of their
own.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from protocol.errors import ConfigError
from services.engine.model.packed_linear import body_layers

logger = logging.getLogger(__name__)
INT4_GROUP = 128  # inputs that share a scale, fewer where a layer's inputs are not so many
_FEW_ROWS = 16  # from about 30 rows on the copy is faster
_GROUPS = (INT4_GROUP, 64, 32)
_COMPRESSED = "compressed-tensors"


def quantize(model: nn.Module, scheme: str, dtype: torch.dtype, device: str) -> int:
    """Quantize the weights of a model's linear layers in place, but for its head; how many they
    are. `scheme`: int8 and fp8 (e4m3) have a scale for each output, int4 one for a group of inputs.
    `ConfigError` if it cannot be done here."""
    layers = list(body_layers(model).values())
    if not layers:
        raise ConfigError("--quantization: this model has no linear layers that it could apply to")
    _check(scheme, dtype, device)
    # Sizes of groups divide one another, so the smallest of them suits every layer.
    config = _config(scheme, min(_largest_group(layer) for layer in layers))
    from torchao.quantization import quantize_

    chosen = set(layers)
    try:
        quantize_(model, config, filter_fn=lambda module, _: module in chosen)
    except (ImportError, NotImplementedError, RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise ConfigError(
            f"--quantization {scheme}: torchao cannot do it here: {reason}"
        ) from error
    if scheme == "int8" and device == "cpu" and dtype is torch.bfloat16:
        _read_directly(model, chosen)
    logger.info("quantized %d linear layers to %s", len(layers), scheme)
    return len(layers)


class Int8Linear(nn.Module):
    """A layer of torchao's int8 weights on a CPU in bfloat16. For few rows PyTorch has a kernel
    that reads the integers as they are: of 2048 × 2048 it takes one row in 0.11 ms where torchao,
    which makes a bfloat16 copy first, takes 0.8 ms. For many rows the copy pays."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self._base = base
        weight: Any = base.weight
        # The very integers that the base reads for many rows, not a copy.
        self._integers: torch.Tensor = weight.qdata
        self._scales: torch.Tensor = weight.scale.flatten().to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]"""
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) > _FEW_ROWS:
            return self._base(x)  # type: ignore[no-any-return]
        out = torch._weight_int8pack_mm(rows, self._integers, self._scales)
        if self._base.bias is not None:
            out += self._base.bias
        return out.view(*x.shape[:-1], -1)


def _read_directly(model: nn.Module, layers: Collection[nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in layers and isinstance(child, nn.Linear):
                setattr(parent, name, Int8Linear(child))


def stored_bytes(weight: torch.Tensor) -> int:
    """Bytes of a tensor as it is stored, scales and zero points included."""
    flatten = getattr(weight, "__tensor_flatten__", None)
    if flatten is None:
        return weight.numel() * weight.element_size()
    return sum(stored_bytes(getattr(weight, name)) for name in flatten()[0])


def _check(scheme: str, dtype: torch.dtype, device: str) -> None:
    if importlib.util.find_spec("torchao") is None:
        raise ConfigError(
            f"--quantization {scheme}: needs torchao: pip install 'triptych[worker,quant]'"
        )
    if scheme == "int4" and (device == "cpu" or dtype is not torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        raise ConfigError(
            f"--quantization int4: needs a GPU and --dtype bfloat16, not {device} and {name}; int8"
            " and fp8 run everywhere"
        )


def _largest_group(layer: Any) -> int:
    return next((size for size in _GROUPS if layer.in_features % size == 0), 0)


def _config(scheme: str, group: int) -> Any:
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
    )

    if scheme == "int8":
        return Int8WeightOnlyConfig()
    if scheme == "fp8":
        return Float8WeightOnlyConfig()
    if not group:
        raise ConfigError("--quantization int4: a layer's inputs are no multiple of 32")
    # Tinygemm's order: needs no library beside PyTorch. Never run on a GPU.
    return Int4WeightOnlyConfig(group_size=group, int4_packing_format="tile_packed_to_4d")


def quantized_by(config: PreTrainedConfig, model_dir: Path) -> str:
    """How a checkpoint says that its weights are quantized, "" if it does not. `ConfigError` if
    transformers does not know the method: it would read over it."""
    form = getattr(config, "quantization_config", None) or {}
    found = form.get("quant_method") if isinstance(form, dict) else form.quant_method
    method = str(getattr(found, "value", found) or "")
    if method and not any(known.startswith(method) for known in AUTO_QUANTIZER_MAPPING):
        raise ConfigError(
            f"--model: the weights in {model_dir} are quantized by '{method[:64]}',"
            " which transformers does not know"
        )
    return method


def dense_on_loading(config: PreTrainedConfig) -> None:
    """Have weights of compressed-tensors decompressed when they are read, not by the first step:
    their layers would quantize the weights anew in every step.

    With several groups transformers would decompress all by the first one's scheme, so those stay
    as the library has them.
    """
    form: Any = getattr(config, "quantization_config", None)
    if not isinstance(form, dict) or form.get("quant_method") != _COMPRESSED:
        return
    if len(form.get("config_groups") or ()) == 1:
        form["dequantize"] = True
