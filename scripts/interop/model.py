"""The model that all workers share, made on the spot with random weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support import tiny_models

NAME = "model"
FAMILY = "qwen2_5_vl"  # its tiny one has head_dim 32, the least that vLLM takes on a CPU


def make(root: Path) -> Path:
    """`root/seeing/model` and `root/blind/model`; returns the former.

    The blind one has zeros for a vision tower: a worker that serves it can answer rightly about a
    picture only with somebody else's embeddings. vLLM hashes media together with the model's path,
    so both have the same one, relative to their folders.
    """
    model = root / "seeing" / NAME
    if model.exists():
        return model
    tiny_models.build(FAMILY, model)
    _complete_preprocessor(model / "preprocessor_config.json")
    blind = root / "blind" / NAME
    shutil.copytree(model, blind)
    _blind(blind / "model.safetensors")
    return model


def _complete_preprocessor(path: Path) -> None:
    """vLLM normalizes by what stands in this file, and not at all if it names no mean."""
    clip = {
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    config = json.loads(path.read_text())
    rescale = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    path.write_text(json.dumps({**config, **rescale, **clip}, indent=2))


def _blind(weights: Path) -> None:
    tensors = load_file(weights)
    for name, tensor in tensors.items():
        if "visual" in name:
            tensors[name] = torch.zeros_like(tensor)
    save_file(tensors, weights, metadata={"format": "pt"})
