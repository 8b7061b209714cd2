"""What the configuration of a model says of its positions, its media and their embeddings; families
that cannot be served are refused."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from protocol.errors import ConfigError
from services.engine.model.embedding_layout import EmbeddingLayout
from services.engine.model.loader import has_media

_KV_LAYERS = ("full_attention", "sliding_attention")


class ModelFamily:
    """Known before any weight is read."""

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype, device: str) -> None:
        """`ConfigError` for a family whose steps need more than embeddings and a KV cache."""
        self.config = config
        self.text_config = config.get_text_config()
        self.dtype = dtype
        self.device = device
        _refuse_state(self.text_config)
        self.takes_media = has_media(config)
        if self.takes_media:
            _refuse_per_layer_inputs(self.text_config)

    @property
    def uses_mrope(self) -> bool:
        rope = getattr(self.text_config, "rope_parameters", None) or {}
        return "mrope_section" in rope

    @property
    def merge_size(self) -> int:
        """Patches a side that become one token, for models with a grid."""
        return int(getattr(self.config.vision_config, "spatial_merge_size", 1))

    @property
    def tokens_per_second(self) -> float | None:
        """By how much rotary positions in time grow in a second of a clip; None: by 1 for each of
        the grid's t, at any distance in time."""
        return getattr(self.config.vision_config, "tokens_per_second", None)

    @property
    def bidirectional_media(self) -> bool:
        """True if the tokens of a picture see one another in both directions."""
        # Its configuration does not say so: transformers goes by the prompt's token types.
        if self.config.model_type == "gemma3":
            return True
        return getattr(self.text_config, "use_bidirectional_attention", None) == "vision"

    @property
    def windowed_media(self) -> bool:
        """True if they do so in layers with a sliding window alone."""
        return bool(self.config.model_type == "gemma4")

    @property
    def embedding_layout(self) -> EmbeddingLayout:
        """A media token's embeddings, those for early layers (deepstack) included."""
        vision = getattr(self.config, "vision_config", None)
        levels = len(getattr(vision, "deepstack_visual_indexes", None) or ())
        width = int(self.text_config.hidden_size)
        return EmbeddingLayout(width, levels, self.dtype, self.device)


def _refuse_per_layer_inputs(config: PreTrainedConfig) -> None:
    """A step has the embeddings of its tokens, not all of their ids."""
    if getattr(config, "hidden_size_per_layer_input", 0):
        raise ConfigError(
            f"model type '{config.model_type}' takes embeddings of the token ids in each layer"
            " (hidden_size_per_layer_input); it cannot be served"
        )


def _refuse_state(config: PreTrainedConfig) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - set(_KV_LAYERS)
    if kinds:
        raise ConfigError(
            f"model type '{config.model_type}' has layers of type {', '.join(sorted(kinds))}, "
            "whose state is not a KV cache; it cannot be served"
        )
