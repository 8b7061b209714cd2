"""Log-probabilities of a prompt's own tokens, from the logits of the steps that compute it.

The logits after token i score token i + 1. They are taken as the model gives them, before
temperature, penalties and masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.types import PositionLogprobs, TokenLogprob
from services.engine.scheduling.chunks import Chunk

_ROWS_AT_ONCE = 64  # logits in double precision at a time: 78 MB for 150,000 tokens


def scored_rows(chunks: Sequence[Chunk]) -> list[int]:
    """Of the T packed tokens of `chunks`, those whose logits score a token of a prompt."""
    rows: list[int] = []
    first = 0
    for chunk in chunks:
        rows += range(first, first + len(_scored(chunk)))
        first += chunk.width
    return rows


def score_prompts(logits: torch.Tensor, chunks: Sequence[Chunk]) -> None:
    """Keep what `logits`, float[R, vocabulary] of `scored_rows`, say of each request's prompt; a
    part of a prompt that is computed again replaces what was said of it before."""
    first = 0
    for chunk in chunks:
        scored = _scored(chunk)
        found = _score(
            logits[first : first + len(scored)], scored, chunk.request.sampling.prompt_logprobs or 0
        )
        if scored:
            chunk.request.prompt_logprobs[chunk.start :] = found
        first += len(scored)


def _scored(chunk: Chunk) -> Sequence[int]:
    """The prompt's tokens that the logits of `chunk` score."""
    if not chunk.request.scores_prompt:
        return ()
    return chunk.request.tokens[chunk.start + 1 : min(chunk.end + 1, chunk.request.num_prompt)]


def _score(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[PositionLogprobs]:
    """logits float[R, vocabulary], R tokens."""
    found: list[PositionLogprobs] = []
    for start in range(0, len(tokens), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        found += _score_rows(logits[part], tokens[part], top)
    return found


def _score_rows(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[PositionLogprobs]:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    values, ids = logprobs.topk(top, dim=-1)
    return [
        PositionLogprobs(token, value, rank, _alternatives(likeliest, of_them))
        for token, value, rank, likeliest, of_them in zip(
            tokens, chosen[:, 0].tolist(), ranks.tolist(), ids.tolist(), values.tolist(),
            strict=True,
        )
    ]  # fmt: skip


def _alternatives(ids: Sequence[int], values: Sequence[float]) -> list[TokenLogprob]:
    return [
        TokenLogprob(token, value, rank)
        for rank, (token, value) in enumerate(zip(ids, values, strict=True), start=1)
    ]
