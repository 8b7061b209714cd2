"""What chunks and whole answers share: names, choice numbers, token ids, logprobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from protocol.openai_answers import Answer, ChatFinish, ChatLogprobs, TextLogprobs
from protocol.types import FinishReason, PositionLogprobs
from services.frontend.logprobs import chat_logprobs, text_logprobs
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

Params = dict[str, Any]


class AnswerForm:
    """Of one request. `id` and `created` are the same in everything that is said of it."""

    def __init__(
        self, spec: OutputSpec, tokenizer: Tokenizer, *, created: int | None = None
    ) -> None:
        """`created`: seconds since the epoch, the present time by default."""
        self.spec = spec
        self.id = f"{'chatcmpl' if spec.chat else 'cmpl'}-{spec.request_id}"
        self.created = int(time.time()) if created is None else created
        self._tokenizer = tokenizer
        self._shown = [0] * spec.n

    def index(self, choice: int) -> int:
        """As the client counts choices: over all prompts of a completion."""
        return self.spec.first_index + choice

    def token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self.spec.return_token_ids else UNSET

    def chat_logprobs(self, positions: Sequence[PositionLogprobs] | None) -> ChatLogprobs | None:
        top = self.spec.logprobs
        if top is None or positions is None:
            return None
        return chat_logprobs(self._tokenizer, positions, top)

    def text_logprobs(
        self, choice: int, positions: Sequence[PositionLogprobs] | None
    ) -> TextLogprobs | None:
        """Their text offsets go on where those of the choice's last chunk ended."""
        top = self.spec.logprobs
        if top is None or positions is None:
            return None
        shown = text_logprobs(self._tokenizer, positions, top, self._shown[choice])
        self._shown[choice] += sum(map(len, shown.tokens))
        return shown


def chat_finish(reason: FinishReason | None, num_calls: int) -> ChatFinish | None:
    """A choice of a chat that stopped after tool calls says so."""
    return "tool_calls" if reason == "stop" and num_calls else reason


def with_params(answer: Answer, kv: Params | None, ec: Params | None) -> Answer:
    """The answer, or chunk, with the handles that are not None."""
    if kv is not None:
        answer.kv_transfer_params = kv
    if ec is not None:
        answer.ec_transfer_params = ec
    return answer
