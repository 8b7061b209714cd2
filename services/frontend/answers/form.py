"""What chunks and whole answers share: names, choice numbers, token ids, logprobs."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from protocol.errors import UpstreamError
from protocol.openai_answers import Answer, ChatFinish, ChatLogprobs, PromptLogprobs, TextLogprobs
from protocol.types import FinishReason, PositionLogprobs
from services.frontend.answers.logprobs import (
    Spelling,
    chat_logprobs,
    prompt_logprobs,
    text_logprobs,
)
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

Params = dict[str, Any]


class AnswerForm:
    """Of one request. `id` and `created` are the same in everything that is said of it, which
    begins with `head`."""

    def __init__(
        self, spec: OutputSpec, tokenizer: Tokenizer, *, created: int | None = None
    ) -> None:
        """`created`: seconds since the epoch, the present time by default."""
        self.spec = spec
        # Several prompts of one request are answered under one name.
        name = spec.answer_id or spec.request_id
        self.id = f"{'chatcmpl' if spec.chat else 'cmpl'}-{name}"
        self.created = int(time.time()) if created is None else created
        # Made once: every chunk begins so.
        self.head: Params = {
            "id": self.id,
            "created": self.created,
            "model": spec.model,
            "system_fingerprint": spec.system_fingerprint or UNSET,
            "service_tier": "default" if spec.tells_tier else UNSET,
        }
        self._spelling = Spelling(tokenizer, spec.tokens_as_ids)
        self._prompt_scores: list[PositionLogprobs | None] | None = None
        echoed = self.prompt_text if spec.echo else ""
        self._shown = [len(echoed)] * spec.n

    def index(self, choice: int) -> int:
        """As the client counts choices: over all prompts of a completion."""
        return self.spec.first_index + choice

    def token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self.spec.return_token_ids else UNSET

    def chat_logprobs(self, positions: Sequence[PositionLogprobs] | None) -> ChatLogprobs | None:
        top = self.spec.logprobs
        if top is None or positions is None:
            return None
        return chat_logprobs(self._spelling, positions, top)

    def text_logprobs(
        self, choice: int, positions: Sequence[PositionLogprobs] | None
    ) -> TextLogprobs | None:
        """Their text offsets go on where those of the choice's last chunk ended."""
        top = self.spec.logprobs
        if top is None or positions is None:
            return None
        token_ids = [position.token_id for position in positions]
        shown = text_logprobs(self._spelling, token_ids, positions, top, self._shown[choice])
        self._shown[choice] += sum(len(self._token(token_id)) for token_id in token_ids)
        return shown

    def _token(self, token_id: int) -> str:
        return self._spelling.tokenizer.token_bytes(token_id).decode(errors="replace")

    @functools.cached_property
    def prompt_text(self) -> str:
        """The prompt as it came, or its tokens' text."""
        spec = self.spec
        if spec.prompt_text is not None:
            return spec.prompt_text
        return self._spelling.tokenizer.decode(
            spec.prompt_token_ids, skip_special_tokens=spec.skip_special_tokens
        )

    def take_prompt_scores(self, scores: Sequence[PositionLogprobs]) -> None:
        """Of the prompt's tokens but the first."""
        self._prompt_scores = [None, *scores]

    @property
    def _scores(self) -> list[PositionLogprobs | None]:
        scores = self._prompt_scores or [None]
        if len(scores) != len(self.spec.prompt_token_ids):
            raise UpstreamError("the worker did not score the prompt")
        return scores

    def echoed_logprobs(self) -> TextLogprobs | None:
        """Of the prompt, as the output's follow them."""
        top = self.spec.logprobs
        if top is None:
            return None
        return text_logprobs(self._spelling, self.spec.prompt_token_ids, self._scores, top, 0)

    def prompt_logprobs(self) -> PromptLogprobs | UnsetType:
        """In vLLM's form, if asked for."""
        top = self.spec.prompt_logprobs
        return UNSET if top is None else prompt_logprobs(self._spelling, self._scores, top)


def chat_finish(reason: FinishReason | None, called: bool) -> ChatFinish | None:
    """A choice of a chat that stopped after tool calls says so."""
    return "tool_calls" if reason == "stop" and called else reason


def with_params(answer: Answer, kv: Params | None, ec: Params | None) -> Answer:
    """The answer, or chunk, with the handles that are not None."""
    if kv is not None:
        answer.kv_transfer_params = kv
    if ec is not None:
        answer.ec_transfer_params = ec
    return answer
