"""Tiny model directories with random weights, one per architecture the engine must run.

`build("qwen2_5_vl", path)` writes a directory that transformers, the workers and the proxy load as
they load a published model. Weights are a pure function of the family and the seed, and are scaled
so that greedy output changes with the prompt, the picture, positions and masks: a wrong position or
another picture's embedding shows up as other tokens within a few steps.
"""

import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from tests.support import tiny_text
from tests.support.tiny_configs import SPECS, Family

VISION_FAMILIES = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "llava_onevision", "gemma3",
    "gemma4", "internvl", "mistral3", "smolvlm",
)  # fmt: skip
TEXT_FAMILIES = ("llama", "qwen3")
FAMILIES = VISION_FAMILIES + TEXT_FAMILIES
AUDIO_FAMILY = "qwen2_audio"
PLUGIN_FAMILY = "llava"  # which examples/plugin brings
STATEFUL_FAMILY = "qwen3_next"  # linear attention beside full attention: the engine refuses it

LAYER_GAIN = 1.3
MLP_GAIN = 2.0
VECTOR_STD = 0.1
ATTENTION_GAIN = 1.6  # queries and keys: attention that picks out tokens, not an average
HEAD_GAIN = 3.0  # logits far apart, so that rounding does not swap the best two


def build(family: str, path: Path, seed: int = 0) -> Path:
    """Writes the model directory `path` (created if missing) and returns it.

    Raises:
        KeyError: `family` is none of those named above.
    """
    spec = SPECS[family]
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_text.write(spec.text, path)
    for name, content in spec.files().items():
        (path / name).write_text(json.dumps(content, indent=2))
    model = _model(spec, tokenizer)
    _randomize(model, spec, zlib.crc32(family.encode()) + seed)
    model.generation_config = _generation_config(spec, tokenizer)
    model.save_pretrained(path)
    return path


def _model(spec: Family, tokenizer: Tokenizer) -> PreTrainedModel:
    model_class = getattr(transformers, spec.model_class)
    model: PreTrainedModel = model_class(_config(spec, tokenizer, model_class.config_class))
    return model.float().eval()


def _config(spec: Family, tokenizer: Tokenizer, config_class: Any) -> PreTrainedConfig:
    values = spec.config(lambda token: tokenizer.encode(token, add_special_tokens=False).ids[0])
    token_ids = _token_ids(spec, tokenizer)
    text = {**values.get("text_config", values), **token_ids}
    text["vocab_size"] = tokenizer.get_vocab_size()
    values = {**values, "text_config": text} if "text_config" in values else text
    config: PreTrainedConfig = config_class(
        **values, architectures=[spec.model_class], dtype="float32"
    )
    return config


def _token_ids(spec: Family, tokenizer: Tokenizer) -> dict[str, int | None]:
    text = spec.text
    return {
        "bos_token_id": tokenizer.token_to_id(text.bos) if text.bos else None,
        "eos_token_id": tokenizer.token_to_id(text.eos[0]),
        "pad_token_id": tokenizer.token_to_id(text.pad),
    }


def _generation_config(spec: Family, tokenizer: Tokenizer) -> GenerationConfig:
    ids = _token_ids(spec, tokenizer)
    eos = [tokenizer.token_to_id(token) for token in spec.text.eos]
    return GenerationConfig(**{**ids, "eos_token_id": eos, "do_sample": False})


def _randomize(model: PreTrainedModel, spec: Family, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(_mean(name, parameter, spec) + VECTOR_STD * noise)
            else:
                parameter.copy_(_std(name, parameter, spec) * noise)


def _mean(name: str, parameter: torch.Tensor, spec: Family) -> torch.Tensor:
    """A norm's scale keeps its initial value, which is 1, or 0 where the module adds 1 (Gemma)."""
    if "norm" not in name:
        return torch.zeros_like(parameter)
    if name.endswith(("model.norm.weight", "language_model.norm.weight")):
        return parameter + (spec.last_norm - 1.0)
    return parameter + (ATTENTION_GAIN - 1.0 if "q_norm" in name or "k_norm" in name else 0.0)


def _std(name: str, parameter: torch.Tensor, spec: Family) -> float:
    if "embed" in name and "patch" not in name:
        return spec.embedding_std
    if "lm_head" in name:
        gain = HEAD_GAIN
    elif any(part in name for part in ("q_proj", "k_proj", "qkv")):
        gain = ATTENTION_GAIN
    elif "mlp" in name:
        gain = MLP_GAIN
    else:
        gain = LAYER_GAIN
    return gain / math.sqrt(math.prod(parameter.shape[1:]))
