"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.openai_answers import ChatLogprob, ChatLogprobs, TextLogprobs, TokenChance
from protocol.types import PositionLogprobs, TokenLogprob
from services.frontend.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity


def chat_logprobs(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], top: int
) -> ChatLogprobs:
    """`top`: how many alternatives each position shows."""
    return ChatLogprobs([_position(tokenizer, position, top) for position in positions])


def _position(tokenizer: Tokenizer, position: PositionLogprobs, top: int) -> ChatLogprob:
    token, logprob, spelled = _chance(tokenizer, position)
    alternatives = [
        TokenChance(*_chance(tokenizer, chance)) for chance in position.top_logprobs[:top]
    ]
    return ChatLogprob(token, logprob, spelled, alternatives)


def _chance(
    tokenizer: Tokenizer, chance: PositionLogprobs | TokenLogprob
) -> tuple[str, float, list[int]]:
    spelled = tokenizer.token_bytes(chance.token_id)
    return spelled.decode(errors="replace"), max(chance.logprob, LEAST), list(spelled)


def text_logprobs(
    tokenizer: Tokenizer, positions: Sequence[PositionLogprobs], top: int, offset: int
) -> TextLogprobs:
    """`offset`: characters of the answer before the first of `positions`.

    Offsets are exact where tokens are whole characters; the tokens of one character share its place
    as nearly as their replacement characters allow.
    """
    tokens = [_text(tokenizer, position) for position in positions]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return TextLogprobs(
        tokens=tokens,
        token_logprobs=[max(position.logprob, LEAST) for position in positions],
        top_logprobs=[_top(tokenizer, position, top) for position in positions],
        text_offset=offsets,
    )


def _top(tokenizer: Tokenizer, position: PositionLogprobs, top: int) -> dict[str, float]:
    """The likeliest tokens, and the chosen one, which may not be among them."""
    chances: list[PositionLogprobs | TokenLogprob] = [*position.top_logprobs[:top], position]
    return {_text(tokenizer, chance): max(chance.logprob, LEAST) for chance in chances}


def _text(tokenizer: Tokenizer, chance: PositionLogprobs | TokenLogprob) -> str:
    return tokenizer.token_bytes(chance.token_id).decode(errors="replace")
