"""Load one part of a transformers model: its language part, or what encodes media; nothing else.

The unwanted submodules are dropped from the skeleton (built without memory) before the weights
are read, so they are neither read from disk nor ever allocated.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
)

from protocol.errors import ConfigError
from services.engine.config import Part
from services.engine.model.quantization import dense_on_loading, quantized_by, stored_bytes

_LANGUAGE_MODELS = ("language_model", "text_model")


def read_config(model_dir: Path) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(model_dir)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"--model: cannot read the configuration in {model_dir}: {error}"
        ) from error


def has_vision(config: PreTrainedConfig) -> bool:
    return getattr(config, "vision_config", None) is not None


def has_audio(config: PreTrainedConfig) -> bool:
    return getattr(config, "audio_config", None) is not None


def has_media(config: PreTrainedConfig) -> bool:
    """Whether there is a part that encodes media, which is called "vision" for any kind."""
    return has_vision(config) or has_audio(config)


def language_part(inner: Any) -> str:
    """How the language part of a model that takes media is called in it; "" if it has none."""
    found = (name for name in _LANGUAGE_MODELS if getattr(inner, name, None) is not None)
    return next(found, "")


def load_part(
    model_dir: Path, part: Part, dtype: torch.dtype, device: str, *, head: bool = True
) -> PreTrainedModel:
    """The model of `model_dir` with only the weights of `part`, in evaluation mode; a language
    model without its head unless there is to be a `head`.

    `ConfigError` if the directory holds no model that transformers knows, lacks weights of the
    part, or has no such part.
    """
    config = read_config(model_dir)
    if part == "vision" and not has_media(config):
        raise ConfigError(
            f"--model: model type '{config.model_type}' of {model_dir} has no vision part"
        )
    partial = _partial_class(_model_class(config), part, head=head)
    # In place of its table of missing keys `_with_weights` raises an error of one line.
    logging.getLogger("transformers.modeling_utils").setLevel(logging.ERROR)
    model = _with_weights(partial, model_dir, config, dtype)
    if part == "language" and has_media(config):
        # Initialization touches them (LLaVA-OneVision's image_newline), so they go last.
        model.model._parameters.clear()
    return _moved(model, device).eval().requires_grad_(False)


def load_text_encoder(
    model_dir: Path, config: PreTrainedConfig, dtype: torch.dtype, device: str, *, head: bool
) -> PreTrainedModel:
    """A model that generates nothing, with its `head` for sequences or without any; `ConfigError`
    as of `load_part`."""
    mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING if head else MODEL_MAPPING
    if type(config) not in mapping:
        raise ConfigError(f"--model: model type '{config.model_type}' has no such head")
    logging.getLogger("transformers.modeling_utils").setLevel(logging.ERROR)
    # BERT's own pooler is not stored with models of vectors, and not asked for.
    optional = () if head else ("pooler.",)
    model = _with_weights(mapping[type(config)], model_dir, config, dtype, optional)
    return _moved(model, device).eval().requires_grad_(False)


def _with_weights(
    cls: type[PreTrainedModel],
    model_dir: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    optional: tuple[str, ...] = (),
) -> PreTrainedModel:
    """`optional`: how names of weights begin that may be missing."""
    method = quantized_by(config, model_dir)
    dense_on_loading(config)
    try:
        model, report = cls.from_pretrained(
            model_dir, config=config, dtype=dtype, output_loading_info=True
        )
    except (OSError, EOFError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--model: cannot read the weights in {model_dir}: {reason}") from error
    # transformers raises it where the library for a method of quantization is missing.
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        form = f" are quantized by '{method}'" if method else " cannot be read"
        raise ConfigError(f"--model: the weights in {model_dir}{form}: {reason}") from error
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(optional))
    if missing:
        raise ConfigError(
            f"--model: {model_dir} lacks {len(missing)} weights, the first is {missing[0]}"
        )
    return model


def _moved(model: PreTrainedModel, device: str) -> Any:
    try:
        # Until here weights are pages of their mapped files, read once on their way to a GPU.
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"--device: the weights do not fit into the memory of {device}"
        ) from error


def _model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    mapping = (
        MODEL_FOR_MULTIMODAL_LM_MAPPING if has_media(config) else (MODEL_FOR_CAUSAL_LM_MAPPING)
    )
    if type(config) not in mapping:
        raise ConfigError(f"--model: model type '{config.model_type}' does not generate text")
    return mapping[type(config)]  # type: ignore[no-any-return]


def _partial_class(
    cls: type[PreTrainedModel], part: Part, *, head: bool = True
) -> type[PreTrainedModel]:
    """A subclass of `cls` whose instances lack the other part, and the head unless it is wanted.

    It takes the name and module of `cls`, because transformers finds a checkpoint's key
    conversions by them.
    """

    def __init__(self: Any, config: PreTrainedConfig) -> None:
        cls.__init__(self, config)
        if part == "vision":
            _drop_language(self)
        elif has_media(config):
            _drop_vision(self)
        if not head:
            _drop_head(self)

    body = {
        "__init__": __init__,
        "__module__": cls.__module__,
        # The files hold the weights of the dropped part, too.
        "_keys_to_ignore_on_load_unexpected": [r".*"],
    }
    return type(cls.__name__, (cls,), body)


def _drop_language(model: Any) -> None:
    setattr(model.model, language_part(model.model), None)
    _drop_head(model)


def _drop_head(model: Any) -> None:
    model.lm_head = None
    # transformers would look up the head by this table to tie it to the embeddings.
    model.all_tied_weights_keys = {}


def _drop_vision(model: Any) -> None:
    inner = model.model
    language = language_part(inner)
    if not language:
        kind = model.config.model_type
        raise ConfigError(f"--model: model type '{kind}' has no '{_LANGUAGE_MODELS[0]}' part")
    others = [name for name, _ in inner.named_children() if name != language]
    for name in others:
        setattr(inner, name, None)


def parameter_bytes(model: torch.nn.Module) -> int:
    """Bytes of all parameters as they are stored, tied ones once."""
    return sum(stored_bytes(parameter) for parameter in model.parameters())
