"""A chat request as its template writes it, with the client's special tokens made harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest
from services.frontend.families import Placeholder
from services.frontend.guard import Guard, Guarded
from services.frontend.messages import Chat
from services.frontend.template import ChatTemplate, Message

MAX_TOOL_CALLS = 128


class ChatText:
    """The model's chat templates. `placeholder`: how a picture looks, None if it takes none."""

    def __init__(
        self, templates: Mapping[str, ChatTemplate], guard: Guard, placeholder: Placeholder | None
    ) -> None:
        self._templates = templates
        self._guard = guard
        self._wanted = placeholder.written if placeholder is not None else ""
        self._inline = placeholder.inline if placeholder is not None else ""

    def render(self, request: ChatCompletionRequest, chat: Chat) -> Guarded:
        """`InvalidRequest` if the template refuses the chat."""
        try:
            return self._render(request, chat)
        except RecursionError:
            raise InvalidRequest(
                "messages: the request is nested too deeply", param="messages"
            ) from None

    def _render(self, request: ChatCompletionRequest, chat: Chat) -> Guarded:
        tools = None if request.tool_choice == "none" else request.tools
        template = self._template(bool(tools))
        values: dict[str, Any] = {
            "messages": chat.messages,
            "tools": tools,
            "documents": request.documents,
            "variables": _variables(request),
        }
        marker = self._guard.marker(values)
        values = marker.mark(values)
        messages = [self._shaped(message, template) for message in values.pop("messages")]
        if request.continue_final_message:
            _check_open_end(request)
            text = template.render_open_end(messages, **values)
        else:
            prompt_follows = request.add_generation_prompt
            text = template.render(messages, add_generation_prompt=prompt_follows, **values)
        return marker.unmark(text, self._wanted)

    def max_tool_calls(self, request: ChatCompletionRequest) -> int:
        """How many calls may be taken out of an answer: none if no tools are given, or if this
        model would not write them in a form that is known."""
        if not request.tools or request.tool_choice == "none" or not self.writes_calls:
            return 0
        return 1 if request.parallel_tool_calls is False else MAX_TOOL_CALLS

    @property
    def writes_calls(self) -> bool:
        """Whether the model writes tool calls in the form that is known here."""
        template = self._found(with_tools=True)
        return template is not None and template.marks_calls

    def _found(self, with_tools: bool) -> ChatTemplate | None:
        template = self._templates.get("tool_use") if with_tools else None
        return template or self._templates.get("default")

    def _template(self, with_tools: bool) -> ChatTemplate:
        template = self._found(with_tools)
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        return template

    def _shaped(self, message: Message, template: ChatTemplate) -> Message:
        """Content in the form the template reads: parts, or one string with placeholders in it."""
        content = message.get("content")
        if content is None:
            return message
        if isinstance(content, str):
            if template.takes_strings or not template.takes_parts:
                return message
            return {**message, "content": [{"type": "text", "text": content}]}
        has_images = any(part["type"] == "image" for part in content)
        if template.takes_parts and (template.marks_images or not has_images):
            return message
        texts = (part.get("text", self._inline) for part in content)
        return {**message, "content": "\n".join(texts)}


def _variables(request: ChatCompletionRequest) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    return variables


def _check_open_end(request: ChatCompletionRequest) -> None:
    if request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt: false",
            param="continue_final_message",
        )
