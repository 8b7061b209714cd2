"""The head of a model that scores: of the language model's head the rows of two tokens."""

from __future__ import annotations

from typing import Any

import torch

from protocol.pooling import Pooler


def taken_score_head(model: Any, pooler: Pooler) -> torch.nn.Linear | None:
    """hidden → logits of `pooler.score_tokens`, None if it has none. The model loses its own."""
    if not pooler.score_tokens:
        return None
    own: torch.nn.Linear = model.lm_head
    rows = torch.tensor(pooler.score_tokens, device=own.weight.device)
    head = torch.nn.Linear(
        own.in_features,
        len(rows),
        bias=own.bias is not None,
        dtype=own.weight.dtype,
        device=own.weight.device,
    ).requires_grad_(False)
    head.weight.copy_(own.weight[rows])
    if own.bias is not None:
        head.bias.copy_(own.bias[rows])
    model.lm_head = None
    return head
