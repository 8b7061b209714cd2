"""Tokens of a choice: drawn, cut where it ends, with made-up log-probabilities."""

from __future__ import annotations

from protocol.types import FinishReason, PositionLogprobs, TokenLogprob
from services.mock.request import Choice, Request
from services.mock.tokens import Vocabulary


def draw(vocabulary: Vocabulary, request: Request, choice: Choice, count: int) -> list[int]:
    """The next `count` tokens of a choice."""
    start = len(choice.tokens)
    return vocabulary.tokens(request.digest, request.seed, choice.index, start, count)


def finish_of(
    request: Request, choice: Choice, tokens: list[int], eos_token_id: int
) -> tuple[FinishReason | None, int | None, int]:
    """(finish reason, stop reason, how many of `tokens` are put out) as a choice gains them."""
    sampling = request.source.sampling
    before = len(choice.tokens)
    if sampling.stop_token_ids or eos_token_id >= 0:
        for count, token in enumerate(tokens, 1):
            if before + count < sampling.min_tokens:
                continue
            if token == eos_token_id and not sampling.ignore_eos:
                return "stop", None, count
            if token in sampling.stop_token_ids:
                return "stop", token, count
            if before + count >= sampling.max_tokens:
                break
    if before + len(tokens) >= sampling.max_tokens:
        return "length", None, max(0, sampling.max_tokens - before)
    return ("length" if request.hands_over else None), None, len(tokens)


def logprobs_of(request: Request, tokens: list[int]) -> list[PositionLogprobs] | None:
    """Of a model that is always equally sure: the chosen token, then its neighbours."""
    wanted = request.source.sampling.logprobs
    if wanted is None:
        return None
    return [
        PositionLogprobs(
            token,
            -1.0,
            1,
            [TokenLogprob(max(0, token - k), -1.0 - k, 1 + k) for k in range(wanted)],
        )
        for token in tokens
    ]
