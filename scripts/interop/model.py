"""The models that workers share, made on the spot with random weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support import lora, tiny_models

NAME = "model"
FAMILY = "qwen2_5_vl"  # its tiny one has head_dim 32, the least that vLLM takes on a CPU
ADAPTERS = ("adapter-one", "adapter-two")  # folders beside the seeing model


def make(root: Path) -> Path:
    """`root/seeing/model` and `root/blind/model`; returns the former.

    The blind one has zeros for a vision tower: a worker that serves it can answer rightly about a
    picture only with another engine's embeddings. vLLM hashes media together with the model's path,
    so both have the same one, relative to their folders.
    """
    model = root / "seeing" / NAME
    if model.exists():
        return model
    tiny_models.build(FAMILY, model)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        _complete_preprocessor(model / name)
    blind = root / "blind" / NAME
    shutil.copytree(model, blind)
    _blind(blind / "model.safetensors")
    return model


def hearing(root: Path) -> Path:
    """`root/hearing/model`, which takes sound."""
    model = root / "hearing" / NAME
    if not model.exists():
        tiny_models.build(tiny_models.AUDIO_FAMILY, model)
        _widen_window(model)
        _take_types(model / "chat_template.jinja")
    return model


def _take_types(template: Path) -> None:
    """vLLM hands parts to a template by their type alone: `{"type": "audio"}`."""
    asked, text = "'audio' in part", template.read_text()
    assert asked in text, f"{template} does not ask whether a part has sound"
    template.write_text(text.replace(asked, f"{asked} or part['type'] == 'audio'"))


def _widen_window(model: Path) -> None:
    """vLLM takes windows of 30 s alone, the tiny model's has 2."""
    times = 15
    for name, part, keys in (
        ("config.json", "audio_config", ("max_source_positions",)),
        ("preprocessor_config.json", "", ("chunk_length", "n_samples", "nb_max_frames")),
    ):
        config = json.loads((model / name).read_text())
        fields = config[part] if part else config
        fields |= {key: times * fields[key] for key in keys}
        (model / name).write_text(json.dumps(config, indent=2))
    weights = model / "model.safetensors"
    tensors = load_file(weights)
    (name,) = (name for name in tensors if name.endswith("embed_positions.weight"))
    tensors[name] = tensors[name].repeat(times, 1)
    save_file(tensors, weights, metadata={"format": "pt"})


def adapters(model: Path) -> list[Path]:
    """Two LoRA adapters of a model, beside it."""
    folders = [model.parent / name for name in ADAPTERS]
    for seed, folder in enumerate(folders):
        if not folder.exists():
            lora.write_adapter(model, folder, seed=seed + 1)
    return folders


def int8(root: Path) -> Path:
    """`root/int8/model`: a model of text with weights in INT8, and inputs that become INT8 token by
    token, as compressed-tensors writes it."""
    from tests.support.quantized_models import compressed

    model = root / "int8" / NAME
    if not model.exists():
        plain = tiny_models.build("qwen3", root / "int8" / "plain")
        compressed(plain, model, activations=True)
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
