"""From logits to tokens, and which guessed tokens of a step are right.

Randomness is a pure function of (seed, choice, output position): a request replayed anywhere, in
any batch, draws the same numbers. One uniform number picks from the inverse cumulative
distribution, see `draw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from services.engine.sampling.adjust import Adjustments
from services.engine.sampling.draw import draw
from services.engine.sampling.logprobs import logprobs
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import NotFinite, Sampled

_MASK = (1 << 64) - 1
_NO_TOKEN = -1  # of a row whose logits are not finite


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1), by two rounds of SplitMix64 (Steele et al., OOPSLA 2014)."""
    state = _mix(seed & _MASK)
    state = _mix(state ^ (choice * 0xD1342543DE82EF95 & _MASK))
    state = _mix(state ^ (position * 0x2545F4914F6CDD1D & _MASK))
    # As many bits as a float64 keeps: more might be rounded up to 1.
    return (state >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Sampler:
    """Chooses one token per row; `eos_token_ids` are held back until `min_tokens` are out."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self._adjustments = Adjustments(eos_token_ids)

    def sample(
        self, logits: torch.Tensor, requests: Sequence[Request], ahead: Sequence[int] = ()
    ) -> list[Sampled]:
        """logits float32[S, vocabulary], one row per request; they are not changed. `ahead`: how
        many tokens behind the request's a row's token stands, [] if none does. A request whose
        grammar cannot be followed, or whose logits are not finite, comes back with a `failure`."""
        adjusted, failures = self._adjustments.apply(logits, requests)
        tokens = _choose(adjusted, requests, ahead or [0] * len(requests))
        found = logprobs(logits, tokens, _wanted(requests), _named(requests))
        # Comes back with the tokens: another copy would have to be waited for.
        tokens = torch.where(_finite(logits), tokens, _NO_TOKEN)
        sampled = []
        for row, (request, token) in enumerate(zip(requests, tokens.tolist(), strict=True)):
            error = failures.get(row) or (_not_finite() if token == _NO_TOKEN else None)
            if error is not None:
                sampled.append(Sampled(request, [], failure=error))
            else:
                sampled.append(Sampled(request, [token], [found[row]] if row in found else None))
        return sampled


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """bool[S], which rows of logits [S, vocabulary] are a model's: none is NaN or infinite, and not
    all are -inf, which a model may give to tokens that it never says."""
    return logits.amax(dim=-1).isfinite()  # NaN is the largest


def _not_finite() -> NotFinite:
    return NotFinite("the model's logits for this request are not finite numbers")


def _wanted(requests: Sequence[Request]) -> dict[int, int]:
    """By row that wants log-probabilities, how many of the likeliest."""
    counts = ((row, request.sampling.logprobs) for row, request in enumerate(requests))
    return {row: count for row, count in counts if count is not None}


def _named(requests: Sequence[Request]) -> dict[int, Sequence[int]]:
    """By row, tokens whose log-probabilities it wants at any rank."""
    named = ((row, request.sampling.logprob_token_ids) for row, request in enumerate(requests))
    return {row: tokens for row, tokens in named if tokens}


def _choose(
    logits: torch.Tensor, requests: Sequence[Request], ahead: Sequence[int]
) -> torch.Tensor:
    """int64[S], on the logits' device."""
    rows = [row for row, request in enumerate(requests) if not request.sampling.greedy]
    if not rows:
        return logits.argmax(dim=-1)
    params = [requests[row].sampling for row in rows]
    numbers = [_number(requests[row], ahead[row]) for row in rows]
    if len(rows) == len(requests):
        return draw(logits, params, numbers)
    tokens = logits.argmax(dim=-1)
    tokens[rows] = draw(logits[rows], params, numbers)
    return tokens


def _number(request: Request, ahead: int) -> float:
    return uniform(request.sampling.seed or 0, request.index, request.num_output + ahead)


def checked(chunks: Sequence[Chunk], sampled: Sequence[Sampled]) -> list[Sampled]:
    """One result for each choice. `sampled`: one for each token, of each chunk's choices in turn.

    A guess is right if it is what is drawn in its place, so that an output is what it would be
    without guesses. What was drawn behind a wrong one is worth nothing.
    """
    rows = iter(sampled)
    found: list[Sampled] = []
    for chunk in chunks:
        for _ in chunk.samplers:
            drawn = list(islice(rows, 1 + len(chunk.draft)))
            found.append(_joined(drawn, chunk.draft) if chunk.draft else drawn[0])
    return found


def _joined(drawn: Sequence[Sampled], draft: Sequence[int]) -> Sampled:
    kept = 1
    for guess, one in zip(draft, drawn, strict=False):
        if one.token_ids != [guess]:
            break
        kept += 1
    first = drawn[0]
    logprobs = [entry for one in drawn[:kept] for entry in one.logprobs or ()]
    return Sampled(
        first.request,
        [token for one in drawn[:kept] for token in one.token_ids],
        logprobs or None,
        next((one.failure for one in drawn[:kept] if one.failure is not None), None),
        drafted=len(draft),
    )
