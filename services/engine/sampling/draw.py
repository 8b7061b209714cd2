"""Draws from the tempered distribution, of all rows of a step at once.

A row of 152,000 logits takes 13 ms to sort on one core and 0.1 ms to scan. So a row is sorted only
where top-k or top-p asks for an order, and of those only the likeliest tokens, as many as the cut
can keep; the rest draw from the cumulative distribution in the order of the vocabulary.

Every operation is elementwise or goes along one row (softmax, cumsum, sort), and sums are kept in
float64. PyTorch splits the sum of a single row among threads, and that of several rows not: it
would make what a row draws depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.types import SamplingParams

_CANDIDATES = (64, 1024, 16384)  # likeliest tokens that are tried before a row is sorted as a whole


def draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]
) -> torch.Tensor:
    """One token a row, int64[S], by `numbers` in [0, 1). logits float32[S, vocabulary]"""
    scaled = logits.float() / _column([s.temperature for s in params], logits)
    picks = _column(numbers, logits, torch.float64)
    cut = [row for row, s in enumerate(params) if s.top_k > 0 or s.top_p < 1]
    if not cut:
        return _draw_unsorted(scaled, params, picks)
    if len(cut) == len(params):
        return _draw_truncated(scaled, params, picks)
    whole = [row for row in range(len(params)) if row not in set(cut)]
    tokens = torch.empty(len(params), dtype=torch.int64, device=logits.device)
    tokens[cut] = _draw_truncated(scaled[cut], [params[row] for row in cut], picks[cut])
    tokens[whole] = _draw_unsorted(scaled[whole], [params[row] for row in whole], picks[whole])
    return tokens


def _column(
    values: Sequence[float], like: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.tensor(values, device=like.device, dtype=dtype)[:, None]


def _draw_unsorted(
    scaled: torch.Tensor, params: Sequence[SamplingParams], picks: torch.Tensor
) -> torch.Tensor:
    """In the order of the vocabulary. scaled [S, vocabulary], picks [S, 1]; int64[S]"""
    probs = torch.softmax(scaled, dim=-1)
    best, likeliest = probs.max(dim=-1, keepdim=True)
    if any(s.min_p for s in params):
        probs = probs * (probs >= _column([s.min_p for s in params], probs) * best)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    # From the right: a pick of 0 passes by tokens at the start that have no probability.
    picked = torch.searchsorted(cumulative, picks * cumulative[:, -1:], right=True)
    # The product may be rounded up to the whole sum, which no token lies above.
    return torch.where(picked < probs.shape[1], picked, likeliest)[:, 0]


def _draw_truncated(
    scaled: torch.Tensor, params: Sequence[SamplingParams], picks: torch.Tensor
) -> torch.Tensor:
    """Among the likeliest: of few candidates first, and of more for rows that may keep more."""
    tokens = torch.empty(len(params), dtype=torch.int64, device=scaled.device)
    rows = list(range(len(params)))
    vocabulary = scaled.shape[1]
    for size in (*(c for c in _CANDIDATES if c < vocabulary), vocabulary):
        found, complete = _cut(scaled[rows], [params[row] for row in rows], picks[rows], size)
        tokens[rows] = found
        rows = [row for row, done in zip(rows, complete.tolist(), strict=True) if not done]
        if not rows:
            break
    return tokens


def _cut(
    scaled: torch.Tensor, params: Sequence[SamplingParams], picks: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64[S] drawn among the `size` likeliest, and bool[S], whether no other token could
    have been kept."""
    values, ids = _likeliest(scaled, size)
    limits = _column([s.top_k if s.top_k > 0 else scaled.shape[1] for s in params], scaled)
    limited = limits < scaled.shape[1]
    probs = torch.softmax(scaled, dim=-1).gather(1, ids).double()
    keep = torch.arange(size, device=scaled.device) < limits
    up_to = (probs * keep).cumsum(-1)
    # top-p counts what top-k has left as the whole.
    whole = torch.where(limited, up_to[:, -1:], 1.0)
    keep &= up_to - probs < _column([s.top_p for s in params], scaled, torch.float64) * whole
    keep &= probs >= _column([s.min_p for s in params], scaled, torch.float64) * probs[:, :1]
    keep &= probs > 0  # what a grammar forbids
    keep[:, 0] = True
    last = keep.sum(-1, keepdim=True) - 1
    # Which of the tokens that are as likely as the last candidate are candidates is chance.
    complete = values.gather(1, last) > values[:, -1:]
    complete &= ~limited | (limits <= size)
    complete |= size == scaled.shape[1]
    cumulative = (probs * keep).cumsum(-1)
    picked = torch.searchsorted(cumulative, picks * cumulative[:, -1:], right=True)
    return ids.gather(1, torch.minimum(picked, last))[:, 0], complete[:, 0]


def _likeliest(scaled: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids [S, size], the likeliest first, equal ones by their ids."""
    if size == scaled.shape[1]:
        values, ids = scaled.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = scaled.topk(size, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = scaled.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
