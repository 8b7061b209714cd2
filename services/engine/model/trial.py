"""Whether the paged path of a model computes what the model computes by itself; what this engine
cannot vouch for it refuses at the start, by name.

Two prompts of random tokens run once through transformers' own attention, each alone and whole, and
once as an engine would run them: packed beside one another, in two chunks and then token by token,
through blocks of a small cache. What no inspection of a family foresees shows up as other logits.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig

from protocol.errors import ConfigError
from protocol.refs import KVLayout
from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements, pool_dtype
from services.engine.containment import is_out_of_memory

logger = logging.getLogger(__name__)
_CODES_TOLERANCE = 0.1  # beyond which an operator is warned
_ROUNDED = 4  # times the error of near positions that rounding alone may make of far ones
_TOKENS = 20  # of each prompt: more than a block, so that it spans two
_STARTS = ((0, 9, 18, 19), (0, 14, 18, 19))  # of its chunks, for either prompt
# Of either prompt, in no order: a path that goes by anything else reads the wrong blocks.
_TABLES = ((3, 1), (0, 2))
TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.1}
"""Relative error of a token's logits, the median over a step: where experts are chosen, rounding
may send a single token another way."""

Own = Callable[[torch.Tensor], torch.Tensor]
"""int64[T] → float[T, vocabulary], by the model alone."""
Paged = Callable[[torch.Tensor, torch.Tensor, PagedBatch], torch.Tensor]
"""int64[T] tokens and int64[T] positions of a step → float[T, vocabulary]."""


def prompts(vocabulary: int, device: str) -> list[torch.Tensor]:
    """Two of int64[_TOKENS], always the same ones."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randint(vocabulary, (2, _TOKENS), generator=generator)
    return [tokens.to(device) for tokens in made]


def worst_error(
    tokens: list[torch.Tensor], expected: list[torch.Tensor], run: Paged, layout: KVLayout
) -> float:
    """The largest relative error of any step, infinite if a logit is not finite where the model's
    own is. `expected`: float[_TOKENS, vocabulary] of each prompt."""
    cache, device = _cache(layout, tokens[0].device), tokens[0].device
    return max(
        _error(run(_packed(tokens, spans), batch.positions, batch), _packed(expected, spans))
        for spans in _steps()
        for batch in [_batch(cache, spans, device)]
    )


def near_and_far(
    tokens: list[torch.Tensor], run: Paged, layout: KVLayout, config: PreTrainedConfig
) -> list[torch.Tensor]:
    """Logits of the first step, and of the same tokens at the last positions that the model was
    made for: layers that go by positions, beyond what they are given as angles, show it there."""
    spans = next(_steps())
    batch = _batch(_cache(layout, tokens[0].device), spans, tokens[0].device)
    far = max(0, (getattr(config, "max_position_embeddings", 0) or 0) - _TOKENS)
    ids = _packed(tokens, spans)
    return [run(ids, batch.positions + shift, batch) for shift in (0, far)]


def error_of_far(found: list[torch.Tensor], expected: list[torch.Tensor], least: float) -> float:
    """How far off logits of `near_and_far` are at far positions, 0 if about as much as near ones,
    by rounding, or by less than `least`."""
    near, far = (_error(one, own) for one, own in zip(found, expected, strict=True))
    return far if far > max(least, _ROUNDED * near) else 0.0


def _cache(layout: KVLayout, device: torch.device) -> KVCache:
    """Four blocks, of zeros."""
    shape = 4, block_elements(layout)
    return KVCache(layout, torch.zeros(shape, dtype=pool_dtype(layout), device=device))


def check_codes(error: float, codes: str) -> None:
    """Say how far logits are off with a KV cache of `codes`; `ConfigError` if they are none."""
    said = f"--kv-cache-dtype: with a KV cache of {codes} the logits of the model"
    if not math.isfinite(error):
        raise ConfigError(f"{said} are not finite numbers")
    level = logging.WARNING if error > _CODES_TOLERANCE else logging.INFO
    logger.log(level, "%s differ by %.2g from its own", said, error)


def _steps() -> Iterator[list[range]]:
    """The tokens of each prompt that a step computes."""
    ends = [(*starts[1:], _TOKENS) for starts in _STARTS]
    for step in range(len(_STARTS[0])):
        yield [range(s[step], e[step]) for s, e in zip(_STARTS, ends, strict=True)]


def _packed(values: list[torch.Tensor], spans: list[range]) -> torch.Tensor:
    return torch.cat([v[s.start : s.stop] for v, s in zip(values, spans, strict=True)])


def _batch(cache: KVCache, spans: list[range], device: torch.device) -> PagedBatch:
    size = cache.block_size
    places = [(row, index) for row, span in enumerate(spans) for index in span]

    def on_device(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return PagedBatch(
        cache=cache,
        slot_blocks=on_device([_TABLES[row][index // size] for row, index in places]),
        slot_offsets=on_device([index % size for _, index in places]),
        block_tables=on_device(_TABLES),
        query_starts=[0, len(spans[0]), len(places)],
        context_lens=[span.stop for span in spans],
        positions=on_device([index for _, index in places]),
    )


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    distance = (found - expected).float().norm(dim=-1) / expected.float().norm(dim=-1)
    return float(distance.nan_to_num(float("inf")).median())


@contextlib.contextmanager
def refused_by_name(model_type: str) -> Iterator[None]:
    """What is found wrong, or raised by a model that is called in a way it does not foresee, is a
    `ConfigError` that names the family."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"--model: model type '{model_type}': {error.message}") from error
    except Exception as error:
        # Lack of memory says nothing about the family.
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
