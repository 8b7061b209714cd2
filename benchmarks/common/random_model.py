"""Models of a size that a benchmark wants, with random weights and a real tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

SEED = 0


@dataclass(frozen=True)
class ModelShape:
    """What differs from the model whose family and tokenizer are taken: keys of `text_config` and
    `vision_config`, the pixels of the largest picture, and the type of the weights."""

    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    most_pixels: int
    dtype: torch.dtype = torch.float32


def build(base: Path, folder: Path, shape: ModelShape, device: str = "cpu") -> Path:
    """Write a model of the family and with the tokenizer of `base` into `folder`, which is new. Its
    numbers are drawn on `device`."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.md"))
    config = json.loads((base / "config.json").read_text())
    config["text_config"] |= shape.text
    config["vision_config"] |= shape.vision
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((base / "preprocessor_config.json").read_text())
    pixels = {"shortest_edge": 3136, "longest_edge": shape.most_pixels}
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "size": pixels}))
    torch.manual_seed(SEED)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    model.to(shape.dtype).save_pretrained(folder)
    return folder
