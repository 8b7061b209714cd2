"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.openai_answers import (
    ChatLogprob,
    ChatLogprobs,
    PromptChance,
    PromptLogprobs,
    TextLogprobs,
    TokenChance,
)
from protocol.types import PositionLogprobs, TokenLogprob
from services.frontend.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class Spelling:
    """How tokens are written in log-probabilities: as text, or as token_id:5 (`as_ids`)."""

    tokenizer: Tokenizer
    as_ids: bool = False

    def token(self, token_id: int) -> str:
        if self.as_ids:
            return f"token_id:{token_id}"
        return self.tokenizer.token_bytes(token_id).decode(errors="replace")

    def chance(self, chance: PositionLogprobs | TokenLogprob) -> tuple[str, float, list[int]]:
        spelled = self.tokenizer.token_bytes(chance.token_id)
        return self.token(chance.token_id), max(chance.logprob, LEAST), list(spelled)


def chat_logprobs(
    spelling: Spelling, positions: Sequence[PositionLogprobs], top: int
) -> ChatLogprobs:
    """`top`: how many alternatives each position shows."""
    return ChatLogprobs([_position(spelling, position, top) for position in positions])


def _position(spelling: Spelling, position: PositionLogprobs, top: int) -> ChatLogprob:
    token, logprob, spelled = spelling.chance(position)
    alternatives = [TokenChance(*spelling.chance(c)) for c in position.top_logprobs[:top]]
    return ChatLogprob(token, logprob, spelled, alternatives)


def text_logprobs(
    spelling: Spelling,
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    top: int,
    offset: int,
) -> TextLogprobs:
    """Of each of `token_ids`, whose place in `positions` may be None: it has no log-probability.
    `offset`: characters of the answer before the first.

    Offsets are exact where tokens are whole characters; the tokens of one character share its place
    as nearly as their replacement characters allow.
    """
    offsets = []
    for token_id in token_ids:
        offsets.append(offset)
        offset += len(spelling.tokenizer.token_bytes(token_id).decode(errors="replace"))
    return TextLogprobs(
        tokens=[spelling.token(token_id) for token_id in token_ids],
        token_logprobs=[None if p is None else max(p.logprob, LEAST) for p in positions],
        top_logprobs=[None if p is None else _top(spelling, p, top) for p in positions],
        text_offset=offsets,
    )


def _top(spelling: Spelling, position: PositionLogprobs, top: int) -> dict[str, float]:
    """The likeliest tokens, and the chosen one, which may not be among them. Of several that are
    spelled alike the likeliest is shown."""
    shown: dict[str, float] = {}
    chances: list[PositionLogprobs | TokenLogprob] = [*position.top_logprobs[:top], position]
    for chance in chances:
        shown.setdefault(spelling.token(chance.token_id), max(chance.logprob, LEAST))
    return shown


def prompt_logprobs(
    spelling: Spelling, positions: Sequence[PositionLogprobs | None], top: int
) -> PromptLogprobs:
    """In vLLM's form: by token id, the likeliest and the prompt's own."""
    return [None if p is None else _prompt_position(spelling, p, top) for p in positions]


def _prompt_position(
    spelling: Spelling, position: PositionLogprobs, top: int
) -> dict[str, PromptChance]:
    chances: list[PositionLogprobs | TokenLogprob] = [*position.top_logprobs[:top], position]
    return {
        str(c.token_id): PromptChance(max(c.logprob, LEAST), c.rank, spelling.token(c.token_id))
        for c in chances
    }
