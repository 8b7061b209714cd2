"""Copies of a tiny model of text with quantized weights, as each library writes them, and what
transformers generates with weights that are quantized once they are loaded."""

import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from services.engine.model.quantization import quantize
from tests.support.reference import Messages, load

FP8_BLOCK = 32


def compressed(model: Path, path: Path, *, activations: bool = False) -> Path:
    """By compressed-tensors in INT8 with a scale for each output: W8A16, or with `activations`
    W8A8, whose inputs are to be quantized token by token."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    def int8(**more: Any) -> Any:
        return QuantizationArgs(num_bits=8, type="int", symmetric=True, **more)

    inputs = int8(strategy="token", dynamic=True) if activations else None
    scheme = QuantizationScheme(
        targets=["Linear"], weights=int8(strategy="channel"), input_activations=inputs
    )
    shutil.copytree(model, path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
    apply_quantization_config(loaded, config)
    for module in loaded.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data = module.weight.abs().amax(1, keepdim=True) / 127.5
    compressor = ModelCompressor.from_pretrained_model(loaded)
    compressor.compress_model(loaded)
    loaded.save_pretrained(path)
    compressor.update_config(path)
    return path


def by_torchao(model: Path, path: Path) -> Path:
    """By torchao, INT8 weights."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    shutil.copytree(model, path)
    config = TorchAoConfig(Int8WeightOnlyConfig())
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float32, quantization_config=config
    )
    loaded.save_pretrained(path)
    return path


def in_fp8_blocks(model: Path, path: Path) -> Path:
    """In the form of DeepSeek's and Qwen's FP8 checkpoints: e4m3 with a scale for each square."""
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(model / "model.safetensors").items():
        weights[name] = weight
        if name.endswith("_proj.weight"):
            rows, columns = (size // FP8_BLOCK for size in weight.shape)
            blocks = weight.view(rows, FP8_BLOCK, columns, FP8_BLOCK)
            scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
            scaled = (blocks / scales[:, None, :, None]).view(weight.shape)
            weights[name] = scaled.to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scales
    copy = says(model, path, quant_method="fp8", weight_block_size=[FP8_BLOCK] * 2)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


def says(model: Path, path: Path, **form: Any) -> Path:
    """A copy whose configuration says that its weights are quantized so, which they are not."""
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": form}))
    return path


def quantized_generate(
    path: Path, scheme: str, cases: Sequence[Messages], tokens: int
) -> list[list[int]]:
    """By transformers, with the language model quantized as an engine does it."""
    reference = load(path)
    model = copy.deepcopy(reference.model)
    quantize(getattr(model.model, "language_model", model), scheme, torch.float32, "cpu")
    quantized = replace(reference, model=model)
    return [quantized.generate(quantized.inputs(case), tokens, ignore_eos=True) for case in cases]
