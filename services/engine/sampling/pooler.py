"""What a model that pools answers with: its head, and from a hidden state a vector or a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from protocol.pooling import Pooler, PoolingParams
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import NotFinite, Sampled


class VectorPooler:
    """Stands where a model that generates has its `Sampler`."""

    def __init__(self, pooler: Pooler) -> None:
        self._pooler = pooler

    def sample(
        self, rows: torch.Tensor, requests: Sequence[Request], ahead: Sequence[int] = ()
    ) -> list[Sampled]:
        """rows float32[S, width of the head], one for each request: hidden states after the last
        norm for vectors, else logits of the head. One that is not finite is a failure."""
        # One copy for all rows, as each waits for the device.
        made = self._activated(rows.float()).cpu()
        return [self._answered(request, row) for request, row in zip(requests, made, strict=True)]

    def _activated(self, rows: torch.Tensor) -> torch.Tensor:
        """float[S, width of the head] → float[S, width of the answer]."""
        pooler = self._pooler
        if pooler.score_tokens:
            return torch.softmax(rows, dim=-1)[:, :1]  # how likely yes is of the two
        if pooler.activation == "softmax":
            return torch.softmax(rows, dim=-1)
        return torch.sigmoid(rows) if pooler.activation == "sigmoid" else rows

    def _answered(self, request: Request, row: torch.Tensor) -> Sampled:
        wanted = request.source.pooling
        assert wanted is not None
        vector = row[: wanted.dimensions]
        if self._normalizes(wanted):
            vector = torch.nn.functional.normalize(vector, dim=0)
        return _finite(request, vector)

    def of_tokens(self, request: Request, answer: torch.Tensor) -> Sampled:
        """answer float32[tokens, ...]: what is said of each, one after the other."""
        return _finite(request, answer.flatten().cpu())

    def _normalizes(self, wanted: PoolingParams) -> bool:
        return self._pooler.normalize if wanted.normalize is None else wanted.normalize


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


def _finite(request: Request, vector: torch.Tensor) -> Sampled:
    if not bool(torch.isfinite(vector).all()):
        error = NotFinite("the model's answer to this input is not a finite number")
        return Sampled(request, [], failure=error)
    return Sampled(request, [], pooled=vector.to(torch.float32).contiguous().numpy().tobytes())
