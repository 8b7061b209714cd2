"""LoRA adapters as PEFT writes them, and what transformers generates with one merged."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.reference import Messages, Reference, load

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def linear_layers(model_dir: Path, targets: Sequence[str] = TARGETS) -> dict[str, torch.nn.Linear]:
    """Of the language model, by their paths in the whole one."""
    found = load(model_dir).model.named_modules()
    return {
        name: module
        for name, module in found
        if name.rpartition(".")[2] in targets and "visual" not in name and "vision" not in name
    }


def write_adapter(
    model_dir: Path,
    folder: Path,
    *,
    seed: int,
    rank: int = 4,
    targets: Sequence[str] = TARGETS,
    strength: float = 0.5,
    **config: Any,
) -> Path:
    """A random adapter that changes what the model says."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for path, layer in linear_layers(model_dir, targets).items():
        a = torch.randn(rank, layer.in_features, generator=generator) / layer.in_features**0.5
        b = torch.randn(layer.out_features, rank, generator=generator) / rank**0.5
        tensors[f"base_model.model.{path}.lora_A.weight"] = a
        tensors[f"base_model.model.{path}.lora_B.weight"] = strength * b
    folder.mkdir(parents=True)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, **config}
    fields["target_modules"] = list(targets)
    (folder / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(model_dir: Path, folder: Path, scale: float = 1.0) -> Reference:
    """The model whose weights are W + scale · B·A."""
    from safetensors.torch import load_file

    reference = load(model_dir)
    model = copy.deepcopy(reference.model)
    tensors = load_file(folder / "adapter_model.safetensors")
    layers = dict(model.named_modules())
    for key, a in tensors.items():
        if key.endswith(".lora_A.weight"):
            b = tensors[key.replace("lora_A", "lora_B")]
            path = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            layers[path].weight.data += scale * (b @ a)
    return replace(reference, model=model)


def merged_generate(
    model_dir: Path, folder: Path, messages: Messages, tokens: int, scale: float = 1.0
) -> list[int]:
    """Greedy token ids of the merged model, past any end of sequence."""
    reference = merged(model_dir, folder, scale)
    return reference.generate(reference.inputs(messages), tokens, ignore_eos=True)


def peft_generate(
    model_dir: Path, folder: Path, cases: Sequence[Messages], tokens: int, **config: Any
) -> list[list[int]]:
    """Greedy token ids of PEFT's own model with a random adapter, which it writes to `folder`."""
    from peft import LoraConfig, get_peft_model

    reference = load(model_dir)
    torch.manual_seed(0)
    options = {"target_modules": list(linear_layers(model_dir)), "init_lora_weights": False}
    model = get_peft_model(
        copy.deepcopy(reference.model), LoraConfig(r=4, lora_alpha=8, **options, **config)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(2.0)  # so that answers change
    model.save_pretrained(folder)
    peft = replace(reference, model=model)
    return [peft.generate(peft.inputs(case), tokens, ignore_eos=True) for case in cases]
