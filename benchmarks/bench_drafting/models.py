"""One random model, and small ones that guess for it: always right, or always wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.common import random_model
from benchmarks.common.random_model import ModelShape

BASE = Path("models/demo")
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_ADDED = ("o_proj.weight", "down_proj.weight")  # what a layer adds to its input comes out of these
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Models:
    """Folders: the large model, one of its first layers, and that one with other weights."""

    large: Path
    right: Path
    wrong: Path


def build(folder: Path, layers: int, few: int) -> Models:
    """The shape of `bench_engine`'s model. Of the large model's layers only the first `few` add
    anything, although all are computed: so a model of these alone says the same."""
    large = random_model.build(BASE, folder / "large", _shape(layers))
    _rewrite(
        large, lambda weights: {name: _silenced(name, one, few) for name, one in weights.items()}
    )
    right = _shortened(large, folder / "right", few)
    wrong = shutil.copytree(right, folder / "wrong")
    _rewrite(wrong, _other)
    return Models(large, right, wrong)


def _shape(layers: int) -> ModelShape:
    text = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers, "num_attention_heads": 16,
        "num_key_value_heads": 4, "max_position_embeddings": 8192,
        "rope_parameters": {
            "mrope_section": [8, 12, 12], "rope_theta": 10000.0, "rope_type": "default",
        },
    }  # fmt: skip
    return ModelShape(text, {"depth": 1, "out_hidden_size": 1024}, 3136, torch.bfloat16)


def _silenced(name: str, weight: torch.Tensor, few: int) -> torch.Tensor:
    layer = _LAYER.search(name)
    silent = layer is not None and int(layer[1]) >= few and name.endswith(_ADDED)
    return torch.zeros_like(weight) if silent else weight


def _shortened(large: Path, folder: Path, few: int) -> Path:
    shutil.copytree(large, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {"num_hidden_layers": few, "layer_types": ["full_attention"] * few}
    (folder / "config.json").write_text(json.dumps(config))

    def first(weights: Tensors) -> Tensors:
        layers = {name: _LAYER.search(name) for name in weights}
        return {
            name: weights[name] for name, at in layers.items() if at is None or int(at[1]) < few
        }

    _rewrite(folder, first)
    return folder


def _other(weights: Tensors) -> Tensors:
    """Other numbers of the same size."""
    random = torch.Generator().manual_seed(random_model.SEED + 1)
    return {
        name: one if one.dim() < 2
        else (torch.randn(one.shape, generator=random) * one.float().std()).to(one.dtype)
        for name, one in weights.items()
    }  # fmt: skip


def _rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    changed = change(load_file(file))
    save_file({name: one.contiguous() for name, one in changed.items()}, file, {"format": "pt"})
