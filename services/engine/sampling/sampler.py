"""From logits to tokens.

Randomness is a pure function of (seed, choice, output position): a request replayed anywhere, in
any batch, draws the same numbers. One uniform number picks from the inverse cumulative
distribution over tokens sorted by probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import InvalidRequest, TriptychError
from protocol.types import PositionLogprobs, TokenLogprob
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import Sampled

_MASK = (1 << 64) - 1


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1), by two rounds of SplitMix64 (Steele et al., OOPSLA 2014)."""
    state = _mix(seed & _MASK)
    state = _mix(state ^ (choice * 0xD1342543DE82EF95 & _MASK))
    state = _mix(state ^ (position * 0x2545F4914F6CDD1D & _MASK))
    return (state >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Sampler:
    """Chooses one token per row; `eos_token_ids` are held back until `min_tokens` are out."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._eos = tuple(eos_token_ids)

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[Sampled]:
        """logits float32[S, vocabulary], one row per request; they are not changed. A request whose
        grammar cannot be followed comes back with a `failure`."""
        adjusted, failures = self._adjust(logits, requests)
        token_ids = _choose(adjusted, requests)
        return [
            Sampled(request, [token], _logprobs(logits[row], token, request), failures.get(row))
            for row, (request, token) in enumerate(zip(requests, token_ids, strict=True))
        ]

    def _adjust(
        self, logits: torch.Tensor, requests: Sequence[Request]
    ) -> tuple[torch.Tensor, dict[int, TriptychError]]:
        changed = None
        failures: dict[int, TriptychError] = {}
        for row, request in enumerate(requests):
            if self._plain(request):
                continue
            if changed is None:
                changed = logits.clone()
            try:
                self._adjust_row(changed[row], request)
            except InvalidRequest as error:
                failures[row] = error
        return logits if changed is None else changed, failures

    def _plain(self, request: Request) -> bool:
        s = request.sampling
        return (
            s.presence_penalty == 0
            and s.frequency_penalty == 0
            and s.repetition_penalty == 1
            and not s.logit_bias
            and request.num_output >= s.min_tokens
            and request.constraint is None
        )

    def _adjust_row(self, row: torch.Tensor, request: Request) -> None:
        s = request.sampling
        if s.repetition_penalty != 1:
            _penalize_repetition(row, request.tokens, s.repetition_penalty)
        if s.presence_penalty or s.frequency_penalty:
            _penalize_output(row, request, s.presence_penalty, s.frequency_penalty)
        for token, bias in s.logit_bias.items():
            row[token] += bias
        if request.num_output < s.min_tokens:
            row[[*self._eos, *s.stop_token_ids]] = float("-inf")
        if request.constraint is not None:
            _constrain(row, request.constraint.allowed(request.output))


def _constrain(row: torch.Tensor, allowed: NDArray[np.bool_]) -> None:
    """Only what is allowed; and if nothing of that is left, all of it."""
    mask = torch.from_numpy(allowed).to(row.device)
    left = row.masked_fill(~mask, float("-inf"))
    if torch.isneginf(left).all():
        left = torch.zeros_like(row).masked_fill(~mask, float("-inf"))
    row.copy_(left)


def _penalize_repetition(row: torch.Tensor, tokens: Sequence[int], penalty: float) -> None:
    """CTRL's penalty (arXiv:1909.05858) on every token of prompt and output."""
    seen = torch.tensor(sorted(set(tokens)), device=row.device)
    seen = seen[seen < row.shape[0]]
    values = row[seen]
    row[seen] = torch.where(values > 0, values / penalty, values * penalty)


def _penalize_output(
    row: torch.Tensor, request: Request, presence: float, frequency: float
) -> None:
    """OpenAI's penalties, which count the output only."""
    counts = Counter(request.output)
    tokens = torch.tensor(list(counts), device=row.device, dtype=torch.int64)
    times = torch.tensor(list(counts.values()), device=row.device, dtype=row.dtype)
    row[tokens] -= presence + frequency * times


def _choose(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    tokens = logits.argmax(dim=-1).tolist()
    rows = [row for row, request in enumerate(requests) if not request.sampling.greedy]
    if rows:
        drawn = _draw(logits[rows], [requests[row] for row in rows])
        for row, token in zip(rows, drawn, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: torch.Tensor, requests: Sequence[Request]) -> list[int]:
    """One token per row from the tempered, truncated distribution."""
    params = [request.sampling for request in requests]

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device, dtype=torch.float64)[:, None]

    scaled = logits.double() / column([s.temperature for s in params])
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    probs = torch.softmax(ordered, dim=-1)
    rank = torch.arange(probs.shape[1], device=probs.device)
    top_k = column([s.top_k if s.top_k > 0 else probs.shape[1] for s in params])
    keep = rank < top_k
    kept = probs * keep
    kept = kept / kept.sum(-1, keepdim=True)
    before = kept.cumsum(-1) - kept
    keep &= before < column([s.top_p for s in params])
    keep &= kept >= column([s.min_p for s in params]) * kept[:, :1]
    keep[:, 0] = True
    cumulative = (kept * keep).cumsum(-1)
    draws = column(
        [
            uniform(s.seed or 0, request.index, request.num_output)
            for s, request in zip(params, requests, strict=True)
        ]
    )
    picked = torch.searchsorted(cumulative, draws * cumulative[:, -1:], right=True)
    picked = torch.minimum(picked, keep.sum(-1, keepdim=True) - 1)
    return order.gather(1, picked)[:, 0].tolist()


def _logprobs(row: torch.Tensor, token: int, request: Request) -> list[PositionLogprobs] | None:
    wanted = request.sampling.logprobs
    if wanted is None:
        return None
    logprobs = torch.log_softmax(row.double(), dim=-1)
    chosen = logprobs[token]
    rank = int((logprobs > chosen).sum()) + 1
    top = []
    if wanted:
        values, ids = logprobs.topk(wanted)
        top = [
            TokenLogprob(t, v, r)
            for r, (t, v) in enumerate(zip(ids.tolist(), values.tolist(), strict=True), start=1)
        ]
    return [PositionLogprobs(token, float(chosen), rank, top)]
