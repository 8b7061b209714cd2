"""What a model directory says about itself, read without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from protocol.errors import ConfigError
from protocol.keys import model_revision
from protocol.pooling import Pooler
from services.frontend.model_folder import weights_name

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
# What transformers' configuration classes assume where published files leave it out.
_CLASS_DEFAULTS = MappingProxyType(
    {
        "gemma3": {"vocab_size": 262_208, "max_position_embeddings": 131_072},
        "gemma4": {"vocab_size": 262_144, "max_position_embeddings": 131_072},
        "mistral3": {"vocab_size": 131_072, "max_position_embeddings": 131_072},
    }
)

Json = dict[str, Any]


@dataclass(frozen=True)
class ModelInfo:
    """What a model directory's files say."""

    path: Path  # the directory
    name: str  # name of the weights, in content keys
    revision: str  # version of the weights, in content keys
    config: Json  # config.json
    processor: Json | None  # options of the image processor, None without one
    processor_config: Json  # processor_config.json, what is around it
    tokenizer_config: Json  # tokenizer_config.json
    special_tokens: Mapping[str, str]  # name (as bos_token) → token
    templates: Mapping[str, str]  # chat templates by name, "default" first
    generation_defaults: Mapping[str, Any]  # sampling parameters of generation_config.json
    eos_token_ids: tuple[int, ...]  # tokens that end an output
    vocab_size: int  # token ids lie below it
    max_model_len: int  # tokens, prompt and output together
    pooler: Pooler | None = None  # what it answers instead of text, None if it generates

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def has_pictures(self) -> bool:
        return "vision_config" in self.config

    @property
    def has_media(self) -> bool:
        return any(f"{part}_config" in self.config for part in ("vision", "audio"))

    @staticmethod
    def load(
        path: Path,
        *,
        max_model_len: int | None = None,
        allow_longer: bool = False,
        chat_template: str | None = None,
        generation_defaults: bool = True,
        processor_overrides: Mapping[str, Any] | None = None,
    ) -> ModelInfo:
        """Read the directory `path`; `ConfigError` names a file that is missing or wrong."""
        config = _read(path / "config.json")
        if not config:
            raise ConfigError(f"--model: {path} has no config.json")
        text = _text_config(config)
        tokenizer_config = _read(path / "tokenizer_config.json")
        processor_config = _read(path / "processor_config.json")
        generation = _read(path / "generation_config.json")
        return ModelInfo(
            path=path,
            name=weights_name(path),
            revision=model_revision(path),
            config=config,
            processor=_image_processor(path, processor_config, processor_overrides or {}),
            processor_config=processor_config,
            tokenizer_config=tokenizer_config,
            special_tokens=_special_tokens(path, tokenizer_config),
            templates=_templates(path, chat_template, tokenizer_config, processor_config),
            generation_defaults=_defaults(path, generation) if generation_defaults else {},
            eos_token_ids=_eos(path, generation, config, text),
            vocab_size=_vocab_size(path, config, text),
            max_model_len=_max_model_len(
                path, text, tokenizer_config, max_model_len, allow_longer=allow_longer
            ),
        )


def _read(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return value


def _text_config(config: Json) -> Json:
    assumed = _CLASS_DEFAULTS.get(config.get("model_type", ""), {})
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), dict):
            return {**assumed, **config[key]}
    return {**assumed, **config}


def _image_processor(path: Path, around: Json, overrides: Mapping[str, Any]) -> Json | None:
    """Its options, or those of an audio model's feature extractor; transformers lets the nested
    form win over the file of its own."""
    nested = around.get("image_processor") or around.get("feature_extractor")
    options = nested or _read(path / "preprocessor_config.json")
    return {**options, **overrides} if options else None


def clip_processor(path: Path) -> Json | None:
    """Options of the video processor of a model directory. transformers reads those of the image
    processor where there are none. `ConfigError` if a file is wrong."""
    options = (
        _read(path / "processor_config.json").get("video_processor")
        or _read(path / "video_preprocessor_config.json")
        or _read(path / "preprocessor_config.json")
    )
    return options or None


def _special_tokens(path: Path, tokenizer_config: Json) -> dict[str, str]:
    legacy = _read(path / "special_tokens_map.json")
    # transformers reads the older file only where the newer one lacks.
    values = {} if "added_tokens_decoder" in tokenizer_config else legacy
    found = {name: values.get(name, tokenizer_config.get(name)) for name in NAMED_TOKENS}
    return {
        name: value["content"] if isinstance(value, dict) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _templates(
    path: Path, given: str | None, tokenizer_config: Json, processor_config: Json
) -> dict[str, str]:
    if given is not None:
        return {"default": _given_template(given)}
    extra = sorted((path / "additional_chat_templates").glob("*.jinja"))
    templates = {file.stem: _text(file) for file in extra}
    file = path / "chat_template.jinja"
    if file.is_file():
        return {"default": _text(file), **templates}
    legacy = _read(path / "chat_template.json").get("chat_template")
    found = legacy or processor_config.get("chat_template") or tokenizer_config.get("chat_template")
    if isinstance(found, list):
        templates.update({entry["name"]: entry["template"] for entry in found})
    elif isinstance(found, dict):
        templates.update(found)
    elif found:
        templates["default"] = found
    return templates


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _given_template(given: str) -> str:
    if "{" in given or "\n" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--chat-template: {error}") from None


def _defaults(path: Path, generation: Json) -> dict[str, Any]:
    found = {name: generation[name] for name in _DEFAULTS if generation.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, int | float):
            raise ConfigError(f"{path / 'generation_config.json'}: {name} is not a number")
    return found


def _eos(path: Path, generation: Json, config: Json, text: Json) -> tuple[int, ...]:
    """The ids at which `generate()` would stop."""
    for source in (generation, text, config):
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        if value in (None, []):
            continue
        if not all(isinstance(n, int) for n in ids):
            raise ConfigError(f"{path}: eos_token_id is not a list of token ids")
        return tuple(ids)
    return ()


def _vocab_size(path: Path, config: Json, text: Json) -> int:
    size = text.get("vocab_size", config.get("vocab_size"))
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"{path / 'config.json'} has no vocab_size")
    return size


def _max_model_len(
    path: Path, text: Json, tokenizer_config: Json, given: int | None, *, allow_longer: bool
) -> int:
    limits = [text[key] for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    length = limits[0] if limits else tokenizer_config.get("model_max_length")
    if not isinstance(length, int) or length < 1:
        length = None
    if given is None and length is None:
        raise ConfigError(f"{path}: its files state no maximum length: set --max-model-len")
    longest = None if length is None else length * _rope_factor(text)
    if given is not None and longest is not None and given > longest and not allow_longer:
        raise ConfigError(
            f"--max-model-len: {given} is more than the model's {length}"
            " (--allow-long-max-model-len takes it)"
        )
    return given or int(length or 0)


def _rope_factor(text: Json) -> float:
    """By how much scaled rotary positions stretch the length the model was made for."""
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = rope.get("factor") if isinstance(rope, dict) else None
    return max(1.0, float(factor)) if isinstance(factor, int | float) else 1.0
