"""Answers in OpenAI's form: what all parts of one share, and the chunks of one that is streamed."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from protocol.openai_answers import (
    Answer,
    CalledToolDelta,
    ChatChunkChoice,
    ChatCompletionChunk,
    ChatFinish,
    Delta,
    FunctionDelta,
    TextChoice,
    TextCompletion,
    Usage,
)
from protocol.types import FinishReason
from services.frontend.answers.logprobs import ShownLogprobs, Spelling
from services.frontend.answers.output import Gain
from services.frontend.parsing.heard import CallPiece
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
        self._tokenizer = tokenizer
        echoed = self.prompt_text if spec.echo else ""
        spelling = Spelling(tokenizer, spec.tokens_as_ids)
        self.logprobs = ShownLogprobs(spec, spelling, [len(echoed)] * spec.n)

    def index(self, choice: int) -> int:
        """As the client counts choices: over all prompts of a completion."""
        return self.spec.first_index + choice

    def token_ids(self, token_ids: Sequence[int]) -> list[int] | UnsetType:
        return list(token_ids) if self.spec.return_token_ids else UNSET

    @functools.cached_property
    def prompt_text(self) -> str:
        """The prompt as it came, or its tokens' text."""
        spec = self.spec
        if spec.prompt_text is not None:
            return spec.prompt_text
        return self._tokenizer.decode(
            spec.prompt_token_ids, skip_special_tokens=spec.skip_special_tokens
        )


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


class ChunkBuilder:
    """The chunks of one request, in order."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._spec = form.spec
        self._called = [False] * form.spec.n
        self._begun: set[int] = set()

    def first_chunks(self) -> list[Answer]:
        """What a stream begins with: the role of each choice of a chat."""
        if not self._spec.chat:
            return []
        choices = (
            # Empty text beside a role: clients that measure the first token pass over such a chunk.
            ChatChunkChoice(index=self._form.index(i), delta=Delta("assistant", ""))
            for i in range(self._spec.n)
        )
        chunks: list[Answer] = [self._chat_chunk([choice]) for choice in choices]
        if self._spec.continuous_usage:
            num_prompt = len(self._spec.prompt_token_ids)
            for chunk in chunks:
                chunk.usage = Usage(num_prompt, 0, num_prompt)
        if self._spec.return_token_ids and isinstance(chunks[0], ChatCompletionChunk):
            chunks[0].prompt_token_ids = list(self._spec.prompt_token_ids)
        return chunks

    def echo(self, index: int, usage: Usage | None) -> Answer | None:
        """The prompt, where a choice of a completion begins that shows it; else None."""
        if not self._spec.echo or index in self._begun:
            return None
        choice = TextChoice(
            index=self._form.index(index),
            text=self._form.prompt_text,
            logprobs=self._form.logprobs.echoed(),
            token_ids=self._form.token_ids([]),
            prompt_token_ids=self._prompt_ids(index),
        )
        chunk = self._text_chunk([choice])
        if self._spec.continuous_usage:
            chunk.usage = usage
        return chunk

    def _prompt_ids(self, index: int) -> list[int] | UnsetType:
        """With a choice's first chunk."""
        if index in self._begun:
            return UNSET
        self._begun.add(index)
        return self._form.token_ids(self._spec.prompt_token_ids)

    def chunk(
        self,
        gain: Gain,
        usage: Usage | None,
        *,
        kv_transfer_params: Params | None = None,
        ec_transfer_params: Params | None = None,
    ) -> Answer | None:
        """The chunk that tells `gain`, None if a client would learn nothing from it.

        `usage` of the choice so far is shown if the client asked for it in every chunk.
        """
        spec = self._spec
        silent = not (gain.text or gain.heard.parts) and gain.finish_reason is None
        told = spec.return_token_ids or gain.logprobs
        # Half a character, or the start of a stop string: a chunk would be empty.
        if silent and not (gain.token_ids and told):
            return None
        chunk: Answer
        if spec.chat:
            chunk = self._chat_chunk([self._chat_delta(gain)])
        else:
            chunk = self._text_chunk([self._text_delta(gain)])
        if spec.continuous_usage:
            chunk.usage = usage
        if kv_transfer_params is None and ec_transfer_params is None:
            return chunk
        return with_params(chunk, kv_transfer_params, ec_transfer_params)

    def usage_chunk(self, usage: Usage) -> Answer | None:
        """The last chunk, if the client asked for usage."""
        if not self._spec.include_usage:
            return None
        chunk = self._chat_chunk([]) if self._spec.chat else self._text_chunk([])
        chunk.usage = usage
        return chunk

    def _chat_delta(self, gain: Gain) -> ChatChunkChoice:
        self._called[gain.index] |= bool(gain.heard.calls)
        logprobs = None if gain.logprobs is None else self._form.logprobs.of_chat(gain.logprobs)
        return ChatChunkChoice(
            index=self._form.index(gain.index),
            delta=_delta(gain),
            logprobs=logprobs,
            finish_reason=gain.finish_reason
            and chat_finish(gain.finish_reason, self._called[gain.index]),
            stop_reason=UNSET if gain.finish_reason is None else gain.stop_reason,
            token_ids=self._form.token_ids(gain.token_ids),
        )

    def _text_delta(self, gain: Gain) -> TextChoice:
        return TextChoice(
            index=self._form.index(gain.index),
            text=gain.text,
            logprobs=self._form.logprobs.of_text(gain.index, gain.logprobs),
            finish_reason=gain.finish_reason,
            stop_reason=gain.stop_reason,
            token_ids=self._form.token_ids(gain.token_ids),
            prompt_token_ids=self._prompt_ids(gain.index),
        )

    def _chat_chunk(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._form.head, choices=choices, usage=self._no_usage())

    def _text_chunk(self, choices: list[TextChoice]) -> TextCompletion:
        return TextCompletion(**self._form.head, choices=choices, usage=self._no_usage())

    def _no_usage(self) -> UnsetType | None:
        """OpenAI shows usage null in every chunk before the one that has it."""
        return None if self._spec.include_usage else UNSET


def _delta(gain: Gain) -> Delta:
    delta = Delta()
    reasoning, calls = gain.heard.reasoning, gain.heard.calls
    if reasoning:
        # vLLM has renamed the field; clients of either version read it.
        delta.reasoning = delta.reasoning_content = reasoning
    if calls:
        delta.tool_calls = [_call_delta(piece) for piece in calls]
    # Beside reasoning or calls an empty content would say nothing.
    if gain.text or not (reasoning or calls):
        delta.content = gain.text
    return delta


def _call_delta(piece: CallPiece) -> CalledToolDelta:
    """A call's first piece names it, the others only add to its arguments."""
    if not piece.id:
        return CalledToolDelta(piece.index, FunctionDelta(piece.arguments))
    function = FunctionDelta(piece.arguments, piece.name)
    return CalledToolDelta(piece.index, function, piece.id, "function")
