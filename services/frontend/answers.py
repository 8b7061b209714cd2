"""Answers in OpenAI's form, from what the choices of a request gain: chunks and whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from protocol.openai_answers import (
    Answer,
    CalledTool,
    CalledToolDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatFinish,
    ChatLogprobs,
    Delta,
    Message,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)
from protocol.types import FinishReason, PositionLogprobs
from services.frontend.logprobs import chat_logprobs, text_logprobs
from services.frontend.output import Gain
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer

Params = dict[str, Any]


@dataclass
class _Whole:
    """Everything a choice has gained."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    calls: list[CalledTool] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class AnswerBuilder:
    """Chunks for a streamed request, or one whole answer: use either `chunk` or `add` on a gain."""

    def __init__(
        self, spec: OutputSpec, tokenizer: Tokenizer, *, created: int | None = None
    ) -> None:
        """`created`: seconds since the epoch, the present time by default."""
        self._spec = spec
        self._tokenizer = tokenizer
        self._created = int(time.time()) if created is None else created
        self._id = f"{'chatcmpl' if spec.chat else 'cmpl'}-{spec.request_id}"
        self._wholes = [_Whole() for _ in range(spec.n)]
        self._shown = [0] * spec.n
        self._called = [0] * spec.n

    # --- streamed -------------------------------------------------------------------------------

    def first_chunks(self) -> list[Answer]:
        """What a stream begins with: the role of each choice of a chat."""
        if not self._spec.chat:
            return []
        choices = (
            ChatChunkChoice(index=self._index(i), delta=Delta("assistant", ""))
            for i in range(self._spec.n)
        )
        chunks: list[Answer] = [self._chat_chunk([choice]) for choice in choices]
        if self._spec.return_token_ids and isinstance(chunks[0], ChatCompletionChunk):
            chunks[0].prompt_token_ids = list(self._spec.prompt_token_ids)
        return chunks

    def chunk(
        self,
        gain: Gain,
        usage: Usage,
        *,
        kv_transfer_params: Params | None = None,
        ec_transfer_params: Params | None = None,
    ) -> Answer | None:
        """The chunk that tells `gain`, None if a client would learn nothing from it, and is not
        kept waiting for a call to be complete.

        `usage` so far is shown if the client asked for it in every chunk.
        """
        spec = self._spec
        silent = not (gain.text or gain.calls) and gain.finish_reason is None
        told = spec.return_token_ids or gain.logprobs or spec.max_tool_calls
        if silent and not (gain.token_ids and told):
            return None
        chunk: Answer
        if spec.chat:
            chunk = self._chat_chunk([self._chat_delta(gain)])
        else:
            chunk = self._text_chunk([self._text_delta(gain)])
        if spec.continuous_usage:
            chunk.usage = usage
        return _with_params(chunk, kv_transfer_params, ec_transfer_params)

    def usage_chunk(self, usage: Usage) -> Answer | None:
        """The last chunk, if the client asked for usage."""
        if not self._spec.include_usage:
            return None
        chunk = self._chat_chunk([]) if self._spec.chat else self._text_chunk([])
        chunk.usage = usage
        return chunk

    def _chat_delta(self, gain: Gain) -> ChatChunkChoice:
        delta = Delta(content=gain.text)
        if gain.calls:
            first = self._called[gain.index]
            self._called[gain.index] += len(gain.calls)
            delta = Delta(
                content=gain.text or UNSET,
                tool_calls=[
                    CalledToolDelta(call.id, call.function, index=index)
                    for index, call in enumerate(gain.calls, first)
                ],
            )
        return ChatChunkChoice(
            index=self._index(gain.index),
            delta=delta,
            logprobs=self._chat_logprobs(gain.logprobs),
            finish_reason=_chat_finish(gain.finish_reason, self._called[gain.index]),
            stop_reason=UNSET if gain.finish_reason is None else gain.stop_reason,
            token_ids=self._token_ids(gain.token_ids),
        )

    def _text_delta(self, gain: Gain) -> TextChoice:
        return TextChoice(
            index=self._index(gain.index),
            text=gain.text,
            logprobs=self._text_logprobs(gain.index, gain.logprobs),
            finish_reason=gain.finish_reason,
            stop_reason=gain.stop_reason,
            token_ids=self._token_ids(gain.token_ids),
        )

    def _chat_chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._spec.model,
            choices=choices,
            usage=self._no_usage(),
        )

    def _text_chunk(self, choices: list[TextChoice]) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._spec.model,
            choices=choices,
            usage=self._no_usage(),
        )

    def _no_usage(self) -> UnsetType | None:
        """OpenAI shows usage null in every chunk before the one that has it."""
        return None if self._spec.include_usage else UNSET

    # --- whole ----------------------------------------------------------------------------------

    def add(self, gain: Gain) -> None:
        """Keep what a choice gained for the whole answer."""
        whole = self._wholes[gain.index]
        whole.text.append(gain.text)
        whole.token_ids += gain.token_ids
        whole.logprobs += gain.logprobs or []
        whole.calls += gain.calls
        if gain.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = gain.finish_reason, gain.stop_reason

    def answer(
        self,
        usage: Usage,
        *,
        kv_transfer_params: Params | None = None,
        ec_transfer_params: Params | None = None,
    ) -> Answer:
        """The whole answer of everything added."""
        whole = self._whole_chat(usage) if self._spec.chat else self._whole_text(usage)
        return _with_params(whole, kv_transfer_params, ec_transfer_params)

    def _whole_chat(self, usage: Usage) -> Answer:
        choices = [
            ChatChoice(
                index=self._index(index),
                message=_message("".join(whole.text), whole.calls),
                logprobs=self._chat_logprobs(whole.logprobs),
                finish_reason=_chat_finish(whole.finish_reason, len(whole.calls)),
                stop_reason=whole.stop_reason,
                token_ids=self._token_ids(whole.token_ids),
            )
            for index, whole in enumerate(self._wholes)
        ]
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._spec.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=self._token_ids(self._spec.prompt_token_ids),
        )

    def _whole_text(self, usage: Usage) -> Answer:
        choices = [
            TextChoice(
                index=self._index(index),
                text="".join(whole.text),
                logprobs=self._text_logprobs(index, whole.logprobs),
                finish_reason=whole.finish_reason,
                stop_reason=whole.stop_reason,
                token_ids=self._token_ids(whole.token_ids),
                prompt_token_ids=self._token_ids(self._spec.prompt_token_ids),
            )
            for index, whole in enumerate(self._wholes)
        ]
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._spec.model,
            choices=choices,
            usage=usage,
        )

    # --- shared ---------------------------------------------------------------------------------

    def _index(self, choice: int) -> int:
        return self._spec.first_index + choice

    def _token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self._spec.return_token_ids else UNSET

    def _chat_logprobs(self, positions: Sequence[PositionLogprobs] | None) -> ChatLogprobs | None:
        top = self._spec.logprobs
        if top is None or positions is None:
            return None
        return chat_logprobs(self._tokenizer, positions, top)

    def _text_logprobs(
        self, choice: int, positions: Sequence[PositionLogprobs] | None
    ) -> TextLogprobs | None:
        top = self._spec.logprobs
        if top is None or positions is None:
            return None
        shown = text_logprobs(self._tokenizer, positions, top, self._shown[choice])
        self._shown[choice] += sum(map(len, shown.tokens))
        return shown


def _message(text: str, calls: list[CalledTool]) -> Message:
    return Message(content=text or None, tool_calls=calls) if calls else Message(content=text)


def _chat_finish(reason: FinishReason | None, num_calls: int) -> ChatFinish | None:
    return "tool_calls" if reason == "stop" and num_calls else reason


def _with_params(answer: Answer, kv: Params | None, ec: Params | None) -> Answer:
    if kv is not None:
        answer.kv_transfer_params = kv
    if ec is not None:
        answer.ec_transfer_params = ec
    return answer
