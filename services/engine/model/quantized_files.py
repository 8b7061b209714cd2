"""Checkpoints with quantized weights, which transformers reads by libraries of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from protocol.errors import ConfigError

_COMPRESSED = "compressed-tensors"


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
