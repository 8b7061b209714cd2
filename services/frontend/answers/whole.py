"""Answers in OpenAI's form, whole, from all that the choices of a request gained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from protocol.openai_answers import (
    Answer,
    CalledFunction,
    CalledTool,
    ChatChoice,
    ChatCompletion,
    Message,
    PromptTokensDetails,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    Usage,
)
from protocol.types import FinishReason, PositionLogprobs
from services.frontend.answers.form import AnswerForm, Params, chat_finish, with_params
from services.frontend.answers.output import Gain
from services.frontend.parsing.heard import CallPiece


@dataclass
class _Whole:
    """Everything a choice has gained."""

    text: list[str] = field(default_factory=list)  # pieces, in order
    token_ids: list[int] = field(default_factory=list)  # of the output, hidden ones included
    # one for each token, if asked for
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)  # pieces of what the model thought
    calls: list[CallPiece] = field(default_factory=list)  # pieces of tool calls
    finish_reason: FinishReason | None = None  # None as long as the choice goes on
    stop_reason: int | str | None = None  # stop string or token that ended it

    def mean_logprob(self) -> float:
        """Per token of the output."""
        return sum(p.logprob for p in self.logprobs) / max(1, len(self.logprobs))


class AnswerBuilder:
    """`add` all gains, then take the `answer`."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._spec = form.spec
        self._wholes = [_Whole() for _ in range(form.spec.n)]

    def add(self, gain: Gain) -> None:
        """Keep what a choice gained for the whole answer."""
        whole = self._wholes[gain.index]
        whole.text.append(gain.text)
        whole.reasoning.append(gain.heard.reasoning)
        whole.token_ids += gain.token_ids
        whole.logprobs += gain.logprobs or []
        whole.calls += gain.heard.calls
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
        return with_params(whole, kv_transfer_params, ec_transfer_params)

    def _whole_chat(self, usage: Usage) -> Answer:
        choices = [
            ChatChoice(
                index=self._form.index(index),
                message=_message(whole),
                logprobs=self._form.logprobs.of_chat(whole.logprobs),
                finish_reason=chat_finish(whole.finish_reason, bool(whole.calls)),
                stop_reason=whole.stop_reason,
                token_ids=self._form.token_ids(whole.token_ids),
            )
            for index, whole in enumerate(self._wholes)
        ]
        return ChatCompletion(
            **self._form.head,
            choices=choices,
            usage=usage,
            prompt_logprobs=self._form.logprobs.of_prompt(),
            prompt_token_ids=self._form.token_ids(self._spec.prompt_token_ids),
        )

    def _whole_text(self, usage: Usage) -> Answer:
        choices = [
            TextChoice(
                index=self._form.index(index),
                text=self._echo + "".join(whole.text),
                logprobs=self._text_logprobs(index, whole),
                finish_reason=whole.finish_reason,
                stop_reason=whole.stop_reason,
                token_ids=self._form.token_ids(whole.token_ids),
                prompt_token_ids=self._form.token_ids(self._spec.prompt_token_ids),
                prompt_logprobs=self._form.logprobs.of_prompt(),
            )
            for index, whole in enumerate(best(self._wholes, self._spec.kept))
        ]
        return TextCompletion(**self._form.head, choices=choices, usage=usage)

    @property
    def _echo(self) -> str:
        return self._form.prompt_text if self._spec.echo else ""

    def _text_logprobs(self, index: int, whole: _Whole) -> TextLogprobs | None:
        shown = self._form.logprobs.of_text(index, whole.logprobs)
        prompt = self._form.logprobs.echoed() if self._spec.echo else None
        return shown if prompt is None or shown is None else joined_logprobs(prompt, shown)


def best(wholes: Sequence[_Whole], kept: int) -> Sequence[_Whole]:
    """Those with the highest mean log-probability, the best first; all as they are if all stay."""
    if kept in (0, len(wholes)):
        return wholes
    return sorted(wholes, key=_Whole.mean_logprob, reverse=True)[:kept]


def joined_logprobs(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def _message(whole: _Whole) -> Message:
    text, reasoning = "".join(whole.text), "".join(whole.reasoning)
    calls = whole_calls(whole.calls)
    message = Message(content=text or None if calls or reasoning else text)
    if calls:
        message.tool_calls = calls
    if reasoning:
        message.reasoning = message.reasoning_content = reasoning
    return message


def whole_calls(pieces: Iterable[CallPiece]) -> list[CalledTool]:
    """Calls from their pieces, in order."""
    calls: dict[int, CalledTool] = {}
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        if piece.index not in calls:
            calls[piece.index] = CalledTool(piece.id, CalledFunction(piece.name, ""))
        arguments.setdefault(piece.index, []).append(piece.arguments)
    for index, call in calls.items():
        call.function.arguments = "".join(arguments[index])
    return list(calls.values())


def merge(answers: Sequence[Answer]) -> Answer:
    """The answer to several prompts of one completion request, from those to each of them."""
    texts = [answer for answer in answers if isinstance(answer, TextCompletion)]
    first = texts[0]
    usages = [answer.usage for answer in texts if isinstance(answer.usage, Usage)]
    first.choices = [choice for answer in texts for choice in answer.choices]
    first.usage = total_usage(usages)
    return first


def merge_chats(answers: Sequence[Answer]) -> Answer:
    """The answer to a batch of chats, a choice of each in their order."""
    chats = [answer for answer in answers if isinstance(answer, ChatCompletion)]
    first, choices = chats[0], [choice for answer in chats for choice in answer.choices]
    for number, choice in enumerate(choices):
        choice.index = number
    first.choices, first.usage = choices, total_usage([answer.usage for answer in chats])
    return first


def total_usage(usages: Sequence[Usage]) -> Usage:
    details = [u.prompt_tokens_details for u in usages if u.prompt_tokens_details is not None]
    audio = sum(d.audio_tokens for d in details if isinstance(d.audio_tokens, int))
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        sum(usage.total_tokens for usage in usages),
        PromptTokensDetails(sum(d.cached_tokens for d in details), audio or UNSET)
        if details
        else None,
    )
