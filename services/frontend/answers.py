"""Answers in OpenAI's form, whole, from all that the choices of a request gained."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.openai_answers import (
    Answer,
    CalledTool,
    ChatChoice,
    ChatCompletion,
    Message,
    TextChoice,
    TextCompletion,
    Usage,
)
from protocol.types import FinishReason, PositionLogprobs
from services.frontend.answer_form import AnswerForm, Params, chat_finish, with_params
from services.frontend.output import Gain


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
    """`add` all gains, then take the `answer`."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._spec = form.spec
        self._wholes = [_Whole() for _ in range(form.spec.n)]

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
        return with_params(whole, kv_transfer_params, ec_transfer_params)

    def _whole_chat(self, usage: Usage) -> Answer:
        choices = [
            ChatChoice(
                index=self._form.index(index),
                message=_message("".join(whole.text), whole.calls),
                logprobs=self._form.chat_logprobs(whole.logprobs),
                finish_reason=chat_finish(whole.finish_reason, len(whole.calls)),
                stop_reason=whole.stop_reason,
                token_ids=self._form.token_ids(whole.token_ids),
            )
            for index, whole in enumerate(self._wholes)
        ]
        return ChatCompletion(
            id=self._form.id,
            created=self._form.created,
            model=self._spec.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=self._form.token_ids(self._spec.prompt_token_ids),
        )

    def _whole_text(self, usage: Usage) -> Answer:
        choices = [
            TextChoice(
                index=self._form.index(index),
                text="".join(whole.text),
                logprobs=self._form.text_logprobs(index, whole.logprobs),
                finish_reason=whole.finish_reason,
                stop_reason=whole.stop_reason,
                token_ids=self._form.token_ids(whole.token_ids),
                prompt_token_ids=self._form.token_ids(self._spec.prompt_token_ids),
            )
            for index, whole in enumerate(self._wholes)
        ]
        return TextCompletion(
            id=self._form.id,
            created=self._form.created,
            model=self._spec.model,
            choices=choices,
            usage=usage,
        )


def _message(text: str, calls: list[CalledTool]) -> Message:
    return Message(content=text or None, tool_calls=calls) if calls else Message(content=text)
