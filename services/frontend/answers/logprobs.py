"""Log-probabilities in OpenAI's two forms, and a prompt's in vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from protocol.errors import UpstreamError
from protocol.openai_answers import (
    ChatLogprob,
    ChatLogprobs,
    PromptChance,
    PromptLogprobs,
    TextLogprobs,
    TokenChance,
)
from protocol.types import PositionLogprobs, TokenLogprob
from services.frontend.spec import OutputSpec
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
        return self.text(token_id)

    def text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode(errors="replace")

    def chance(self, chance: PositionLogprobs | TokenLogprob) -> tuple[str, float, list[int]]:
        spelled = self.tokenizer.token_bytes(chance.token_id)
        return self.token(chance.token_id), max(chance.logprob, LEAST), list(spelled)


@dataclass
class ShownLogprobs:
    """What one answer shows of them. `shown`: characters of each choice that were shown so far."""

    spec: OutputSpec
    spelling: Spelling
    shown: list[int]
    _prompt: Sequence[PositionLogprobs] = ()

    def of_chat(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs | None:
        top = self.spec.logprobs
        if top is None:
            return None
        return ChatLogprobs([_position(self.spelling, position, top) for position in positions])

    def of_text(
        self, choice: int, positions: Sequence[PositionLogprobs] | None
    ) -> TextLogprobs | None:
        """Their text offsets go on where those of the choice's last chunk ended."""
        top = self.spec.logprobs
        if top is None or positions is None:
            return None
        token_ids = [position.token_id for position in positions]
        shown = _in_text(self.spelling, token_ids, positions, top, self.shown[choice])
        self.shown[choice] += sum(len(self.spelling.text(token_id)) for token_id in token_ids)
        return shown

    def take_prompt(self, scores: Sequence[PositionLogprobs]) -> None:
        """Of the prompt's tokens but the first."""
        self._prompt = scores

    @property
    def _scores(self) -> list[PositionLogprobs | None]:
        # Nothing comes before the first token that would make it likely.
        scores = [None, *self._prompt]
        if len(scores) != len(self.spec.prompt_token_ids):
            raise UpstreamError("the worker did not score the prompt")
        return scores

    def echoed(self) -> TextLogprobs | None:
        """Of the prompt, as the output's follow them."""
        top = self.spec.logprobs
        if top is None:
            return None
        return _in_text(self.spelling, self.spec.prompt_token_ids, self._scores, top, 0)

    def of_prompt(self) -> PromptLogprobs | UnsetType:
        """In vLLM's form, if asked for: by token id, the likeliest and the prompt's own."""
        top = self.spec.prompt_logprobs
        if top is None:
            return UNSET
        return [
            None if p is None else _prompt_position(self.spelling, p, top) for p in self._scores
        ]


def _position(spelling: Spelling, position: PositionLogprobs, top: int) -> ChatLogprob:
    token, logprob, spelled = spelling.chance(position)
    alternatives = [TokenChance(*spelling.chance(c)) for c in position.top_logprobs[:top]]
    return ChatLogprob(token, logprob, spelled, alternatives)


def _in_text(
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
        offset += len(spelling.text(token_id))
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


def _prompt_position(
    spelling: Spelling, position: PositionLogprobs, top: int
) -> dict[str, PromptChance]:
    chances: list[PositionLogprobs | TokenLogprob] = [*position.top_logprobs[:top], position]
    return {
        str(c.token_id): PromptChance(max(c.logprob, LEAST), c.rank, spelling.token(c.token_id))
        for c in chances
    }
