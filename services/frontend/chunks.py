"""Answers in OpenAI's form, streamed: a chunk for what a choice gains."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from protocol.openai_answers import (
    Answer,
    CalledToolDelta,
    ChatChunkChoice,
    ChatCompletionChunk,
    Delta,
    TextChoice,
    TextCompletion,
    Usage,
)
from services.frontend.answer_form import AnswerForm, Params, chat_finish, with_params
from services.frontend.output import Gain


class ChunkBuilder:
    """The chunks of one request, in order."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._spec = form.spec
        self._called = [0] * form.spec.n

    def first_chunks(self) -> list[Answer]:
        """What a stream begins with: the role of each choice of a chat."""
        if not self._spec.chat:
            return []
        choices = (
            ChatChunkChoice(index=self._form.index(i), delta=Delta("assistant", ""))
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
        return with_params(chunk, kv_transfer_params, ec_transfer_params)

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
            index=self._form.index(gain.index),
            delta=delta,
            logprobs=self._form.chat_logprobs(gain.logprobs),
            finish_reason=chat_finish(gain.finish_reason, self._called[gain.index]),
            stop_reason=UNSET if gain.finish_reason is None else gain.stop_reason,
            token_ids=self._form.token_ids(gain.token_ids),
        )

    def _text_delta(self, gain: Gain) -> TextChoice:
        return TextChoice(
            index=self._form.index(gain.index),
            text=gain.text,
            logprobs=self._form.text_logprobs(gain.index, gain.logprobs),
            finish_reason=gain.finish_reason,
            stop_reason=gain.stop_reason,
            token_ids=self._form.token_ids(gain.token_ids),
        )

    def _chat_chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._form.id,
            created=self._form.created,
            model=self._spec.model,
            choices=choices,
            usage=self._no_usage(),
        )

    def _text_chunk(self, choices: list[TextChoice]) -> TextCompletion:
        return TextCompletion(
            id=self._form.id,
            created=self._form.created,
            model=self._spec.model,
            choices=choices,
            usage=self._no_usage(),
        )

    def _no_usage(self) -> UnsetType | None:
        """OpenAI shows usage null in every chunk before the one that has it."""
        return None if self._spec.include_usage else UNSET
