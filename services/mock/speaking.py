"""What a mock worker says, in OpenAI's words."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from protocol.generate_answers import TokenCounts, whole_answer
from protocol.openai import SharedFields
from protocol.openai_answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Delta,
    Message,
    PromptTokensDetails,
    TextChoice,
    TextCompletion,
    Usage,
)
from protocol.types import GenerateRequest, RequestOutput
from services.mock.chat import text_of
from services.mock.instance import Instance

Params = dict[str, Any]
_encoder = msgspec.json.Encoder()


class Speaker:
    """Answers of one request in OpenAI's words."""

    def __init__(self, instance: Instance, request: SharedFields, *, chat: bool) -> None:
        options = request.stream_options
        self.stream = bool(request.stream)
        self.include_usage = options is not None and options.include_usage
        self._chat = chat
        self._ids = bool(request.return_token_ids)
        self._model = request.model or instance.config.name
        self._created = int(time.time())

    def whole(
        self, request: GenerateRequest, outputs: list[RequestOutput], ec: Params | None = None
    ) -> ChatCompletion | TextCompletion:
        answer = whole_answer(request, outputs)
        counts = TokenCounts(request)
        counts.count(outputs)
        kv = answer.kv_transfer_params
        head: Params = {
            "id": request.request_id,
            "created": self._created,
            "model": self._model,
            "kv_transfer_params": UNSET if kv is None else kv,
            "ec_transfer_params": UNSET if ec is None else ec,
            "usage": _usage(counts),
        }
        if not self._chat:
            texts = [self._text(c.index, c.token_ids, c) for c in answer.choices]
            return TextCompletion(**head, choices=texts)
        choices = [
            ChatChoice(
                index=choice.index,
                message=Message(content=text_of(choice.token_ids)),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=self._shown(choice.token_ids),
            )
            for choice in answer.choices
        ]
        return ChatCompletion(**head, choices=choices)

    def _text(self, index: int, tokens: list[int], ended: Any) -> TextChoice:
        return TextChoice(
            index=index,
            text=text_of(tokens),
            finish_reason=ended.finish_reason,
            stop_reason=ended.stop_reason,
            token_ids=self._shown(tokens),
        )

    def _shown(self, tokens: list[int]) -> list[int] | UnsetType:
        return tokens if self._ids else UNSET

    def opening(self, request: GenerateRequest) -> list[bytes]:
        """The role of every choice, before its first token; completions have none."""
        if not self._chat:
            return []
        delta = Delta(role="assistant", content="")
        return [
            self._encoded(request, [ChatChunkChoice(index=index, delta=delta)])
            for index in range(request.sampling.n)
        ]

    def chunk(self, request: GenerateRequest, step: list[RequestOutput]) -> tuple[bytes, int]:
        """One event, and how many tokens it has."""
        count = sum(len(output.token_ids) for output in step)
        kv = next((o.kv_transfer_params for o in step if o.kv_transfer_params), None)
        choices: list[Any] = [
            self._delta(output)
            if self._chat
            else self._text(output.index, output.token_ids, output)
            for output in step
        ]
        return self._encoded(request, choices, kv), count

    def _delta(self, output: RequestOutput) -> ChatChunkChoice:
        text = text_of(output.token_ids)
        return ChatChunkChoice(
            index=output.index,
            delta=Delta(content=text) if text else Delta(),
            finish_reason=output.finish_reason,
            stop_reason=UNSET if output.finish_reason is None else output.stop_reason,
            token_ids=self._shown(output.token_ids),
        )

    def usage_chunk(self, request: GenerateRequest, counts: TokenCounts) -> bytes:
        return self._encoded(request, [], None, _usage(counts))

    def _encoded(
        self,
        request: GenerateRequest,
        choices: list[Any],
        kv: Params | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        kind = ChatCompletionChunk if self._chat else TextCompletion
        return _encoder.encode(
            kind(
                id=request.request_id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=(usage if self.include_usage else UNSET) if usage is None else usage,
                kv_transfer_params=UNSET if kv is None else kv,
            )
        )


def _usage(counts: TokenCounts) -> Usage:
    total = counts.prompt + counts.completion
    return Usage(counts.prompt, counts.completion, total, PromptTokensDetails(counts.cached))
