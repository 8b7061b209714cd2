"""What transformers generates with a KV cache of codes."""

from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from services.engine.attention.kv_codes import NUMBERS, decoded, encoded
from tests.support.reference import Messages, load


class CodedCache(DynamicCache):
    """Gives back what its codes say, also of the tokens that a call brings."""

    def __init__(self, codes: str, config: Any) -> None:
        super().__init__(config=config)
        self._kind = NUMBERS[codes]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **keywords: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = (
            decoded(*encoded(rows, self._kind), self._kind, rows.dtype)
            for rows in (key_states, value_states)
        )
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(key, value, *args, **keywords)
        return updated


def coded_generate(path: Path, messages: Messages, tokens: int, codes: str) -> list[int]:
    """Greedy, ignoring the end of a text."""
    reference = load(path)
    inputs: dict[str, Any] = dict(reference.inputs(messages))
    config = reference.model.config.get_text_config()
    inputs["past_key_values"] = CodedCache(codes, config)
    return reference.generate(inputs, tokens, ignore_eos=True)
