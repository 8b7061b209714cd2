"""What this engine cannot vouch for it refuses at the start, by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from protocol.errors import ConfigError
from services.engine.containment import is_out_of_memory


@contextlib.contextmanager
def refused_by_name(model_type: str) -> Iterator[None]:
    """What is found wrong, or raised by a model that is called in a way it does not foresee, is a
    `ConfigError` that names the family."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--model: model type '{model_type}': {error.message}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise ConfigError(
            f"--model: model type '{model_type}' cannot be served with paged attention: {reason}"
        ) from error


def check_positions(module: torch.nn.Module, model_type: str, max_model_len: int) -> None:
    """`ConfigError` if rotary frequencies depend on how long the longest request of a step is
    (longrope, dynamic NTK) for requests of up to `max_model_len` tokens: beside a long one, a short
    one would be turned by other angles than alone, and than the KV that it has."""
    for part in module.modules():
        for kind, bound in _lengths(part):
            if max_model_len > bound:
                raise ConfigError(
                    f"--max-model-len {max_model_len}: model type '{model_type}' scales its rotary "
                    f"positions by '{kind}' from {bound} tokens on, which depends on the requests "
                    f"of a step; at most {bound} can be served"
                )


def _lengths(part: Any) -> Iterator[tuple[str, int]]:
    """(kind, tokens up to which nothing changes) of each scaling that a rotary module has."""
    kinds = getattr(part, "rope_type", None)
    if kinds is None:
        return
    by_layer = kinds if isinstance(kinds, dict) else {"": kinds}
    for layer_type, kind in by_layer.items():
        if kind == "longrope":
            rope = part.config.rope_parameters
            rope = rope[layer_type] if layer_type else rope
            yield kind, int(rope["original_max_position_embeddings"])
        elif "dynamic" in str(kind):
            yield kind, int(part.original_max_seq_len)
