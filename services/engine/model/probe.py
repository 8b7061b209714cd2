"""What each attention layer of a model keeps and sees, found out by running two tokens.

Layers are asked, not configurations: those of several families declare windows that their layers
ignore, or ignore to hand to attention the windows that their masks have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DynamicCache,
    PreTrainedConfig,
)

from protocol.errors import ConfigError
from protocol.refs import KVGroup

PROBE = "triptych_probe"
_FAR = 1 << 24  # a position that no window reaches back from to the start
_OTHER = -1  # neither causal nor a sliding window
_NO_MASK = -2

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LayerShape:
    """What one attention layer keeps per token; `window` in tokens, 0 for none."""

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int


class Recording:
    """Stands in for attention while a model runs; `run` it between `attach` and `shapes`."""

    def __init__(self) -> None:
        self._shapes: dict[int, LayerShape] = {}
        self._calls: Counter[int] = Counter()
        self._problems: list[str] = []

    def attach(self, model: Any) -> None:
        """`model` calls this for attention, and builds masks that say what they are."""
        AttentionInterface.register(PROBE, self._attention)
        AttentionMaskInterface.register(PROBE, _mask)
        model.set_attn_implementation(PROBE)

    def _attention(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        sliding_window: int | None = None,
        **keywords: Any,
    ) -> tuple[torch.Tensor, None]:
        layer = int(module.layer_idx)
        masked = _NO_MASK if attention_mask is None else int(attention_mask.flatten()[0])
        if "paged" not in keywords:
            self._problems.append(f"layer {layer} does not pass on what the step says of the cache")
        if masked == _OTHER:
            self._problems.append(f"the mask of layer {layer} is neither causal nor a window")
        # The mask is what the model's own attention goes by; the argument is for kernels without.
        window = (sliding_window or 0) if masked == _NO_MASK else max(masked, 0)
        self._calls[layer] += 1
        self._shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3], window)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    def shapes(self, config: PreTrainedConfig) -> dict[int, LayerShape]:
        """By layer, 0 … layers − 1. `ConfigError` if the paged cache cannot stand in for what the
        layers do."""
        layers = config.num_hidden_layers
        if sorted(self._shapes) != list(range(layers)):
            raise ConfigError(
                f"{len(self._shapes)} of {layers} layers use attention with a KV cache; models "
                "with other state cannot be served"
            )
        layer, calls = self._calls.most_common(1)[0]
        # The KV of a second call would be written over that of the first (diffllama has two).
        if calls > 1:
            self._problems.append(f"layer {layer} calls attention {calls} times")
        # A generate() that keeps fewer tokens than a layer sees gives other tokens than we would.
        for layer, kept in enumerate(_kept_by_generate(config)):
            if kept != self._shapes[layer].window:
                self._problems.append(
                    f"layer {layer} attends over a window of {self._shapes[layer].window} tokens "
                    f"(0: all), its cache keeps {kept}"
                )
        if self._problems:
            raise ConfigError(self._problems[0])
        return self._shapes


def _kept_by_generate(config: PreTrainedConfig) -> list[int]:
    """The window in tokens of each layer's cache as `generate()` makes it, 0 for all tokens."""
    layers = DynamicCache(config=config).layers
    return [int(getattr(layer, "sliding_window", 0) or 0) for layer in layers]


def _mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: MaskFunction, **options: Any
) -> torch.Tensor:
    """What transformers takes for a mask, [1, 1, Q, K]: every element is the mask's window."""
    device = options.get("device", "cpu")
    window = window_of(mask_function)
    return torch.full((batch_size, 1, q_length, kv_length), window, device=device)


def window_of(visible: MaskFunction) -> int:
    """How many tokens, itself included, a token sees: 0 for all before it, −1 if it is not that."""
    try:
        return _window_of(lambda q, kv: visible(*(torch.tensor(n) for n in (0, 0, q, kv))))
    except (IndexError, RuntimeError):  # it looks at this batch's tokens
        return _OTHER


def _window_of(visible: Callable[[int, int], Any]) -> int:
    window = 0
    if not visible(_FAR, 0):
        unseen, seen = 0, _FAR
        while seen - unseen > 1:
            middle = (unseen + seen) // 2
            unseen, seen = (unseen, middle) if visible(_FAR, middle) else (middle, seen)
        window = _FAR - seen + 1
    # The search has found one edge of what is seen. A mask of another form has more of them.
    edges = [0, 1, 2, 7, 64, *(max(0, n) for n in (window - 1, window, window + 1, 3 * window + 5))]
    for q in edges:
        for kv in (*edges, max(0, q - window), max(0, q - window + 1)):
            if bool(visible(q, kv)) != (kv <= q and (not window or kv > q - window)):
                return _OTHER
    return window


def kv_groups(shapes: Mapping[int, LayerShape]) -> tuple[KVGroup, ...]:
    """The layers of each shape, in the order of the first of them."""
    groups: dict[LayerShape, list[int]] = {}
    for layer, shape in sorted(shapes.items()):
        groups.setdefault(shape, []).append(layer)
    return tuple(
        KVGroup(tuple(layers), shape.kv_heads, shape.k_dim, shape.v_dim, shape.window)
        for shape, layers in groups.items()
    )
