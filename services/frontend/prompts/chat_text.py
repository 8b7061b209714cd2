"""A chat request as its template writes it, with the client's special tokens made harmless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, SharedFields
from protocol.types import Modality
from services.frontend.families import Placeholder
from services.frontend.parsing.base import ToolFormat
from services.frontend.parsing.reading import Parsers, Reading
from services.frontend.prompts.guard import Guard, Guarded
from services.frontend.prompts.messages import Chat
from services.frontend.prompts.other_templates import RequestTemplates
from services.frontend.prompts.template import ChatTemplate, Message
from services.frontend.tool_use import ToolUse


class ChatText:
    """The model's chat templates, and those that requests bring. `placeholders`: how media look, of
    each kind that the model takes."""

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        brought: RequestTemplates,
        guard: Guard,
        placeholders: Mapping[Modality, Placeholder],
        parsers: Parsers | None = None,
    ) -> None:
        self._parsers = parsers or Parsers()
        self._templates = templates
        self._brought = brought
        self._guard = guard
        self._wanted = tuple(placeholder.written for placeholder in placeholders.values())
        self._inline = {name: placeholder.inline for name, placeholder in placeholders.items()}

    def render(self, request: ChatCompletionRequest, chat: Chat, use: ToolUse) -> Guarded:
        """`InvalidRequest` if the template refuses the chat."""
        try:
            return self._render(request, chat, use)
        # Values are marked and written recursively; JSON of a client may be nested at will.
        except RecursionError:
            raise InvalidRequest(
                "messages: the request is nested too deeply", param="messages"
            ) from None

    def _render(self, request: ChatCompletionRequest, chat: Chat, use: ToolUse) -> Guarded:
        tools = list(use.shown) or None
        template = self._used(request, use)
        if template is None:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        values: dict[str, Any] = {
            "messages": chat.messages,
            "tools": tools,
            "documents": request.documents,
            "variables": _variables(request),
        }
        marker = self._guard.marker(values)
        values = marker.mark(values)
        # Once the client's texts are marked: what `_shaped` writes are placeholders of ours.
        messages = [self._shaped(message, template) for message in values.pop("messages")]
        if request.continue_final_message:
            _check_open_end(request)
            text = template.render_open_end(messages, **values)
        else:
            prompt_follows = request.add_generation_prompt
            text = template.render(messages, add_generation_prompt=prompt_follows, **values)
        return marker.unmark(text, *self._wanted)

    def form(self, request: SharedFields, use: ToolUse) -> type[ToolFormat] | None:
        """How the model writes calls; None if there are no tools, or calls are to stay in the text.
        `InvalidRequest` if the template does not show tools to the model, or calls are forced that
        would not be found."""
        template = self._used(request, use)
        form = self._parsers.tool_format(template.source) if template is not None else None
        if not use.shown:
            # Harmony's messages have heads where there are no tools, too.
            return form if form is not None and form.always else None
        if template is not None and not template.reads_tools:
            said = "the chat template takes no tools"
        elif use.forced and form is None:
            said = "--tool-call-parser none leaves calls in the text"
        else:
            return form
        param = "tool_choice" if use.forced else "tools"
        raise InvalidRequest(f"{param}: {said}", param=param, code="unsupported_field")

    def reading(self, request: ChatCompletionRequest, use: ToolUse, prompt_end: str) -> Reading:
        """How an answer is read that follows a prompt with that end."""
        template, form = self._used(request, use), self.form(request, use)
        thoughts = None
        # A form that is `always` there tells reasoning apart by itself.
        if template is not None and (form is None or not form.always):
            thoughts = self._parsers.thinking(template.source)
        tools = {function.name: function for function in use.functions}
        return Reading(
            tools=form(tools) if form is not None else None,
            thinking=thoughts,
            inside=thoughts is not None and thoughts.is_open(prompt_end),
            most=use.most,
            only=use.forced,
        )

    def _used(self, request: SharedFields, use: ToolUse) -> ChatTemplate | None:
        """The template that writes the chat; None for a text, or if the model has no template."""
        if not isinstance(request, ChatCompletionRequest):
            return None
        if own := request.chat_template or request.user_template:
            return self._brought.get(own)
        if request.template_key is not None:
            return self._named(request.template_key)
        # transformers' name for the template of chats with tools.
        template = self._templates.get("tool_use") if use.shown else None
        return template or self._templates.get("default")

    def _named(self, key: str) -> ChatTemplate:
        """One of the model's templates by its name."""
        if key not in self._templates:
            raise InvalidRequest(
                f"template_key: the model has no template '{key[:64]}', it has"
                f" {', '.join(sorted(self._templates)) or 'none'}",
                param="template_key",
            )
        return self._templates[key]

    def _shaped(self, message: Message, template: ChatTemplate) -> Message:
        """Content in the form the template reads: parts, or one string with placeholders in it."""
        content = message.get("content")
        if content is None:
            return message
        if isinstance(content, str):
            if template.takes_strings or not template.takes_parts:
                return message
            return {**message, "content": [{"type": "text", "text": content}]}
        kinds = {part["type"] for part in content}
        # A template that takes parts but writes nothing for a clip would lose it.
        if template.takes_parts and all(
            template.marks(kind) for kind in kinds.intersection(self._inline)
        ):
            return message
        texts = (part.get("text", self._inline.get(part["type"], "")) for part in content)
        return {**message, "content": "\n".join(texts)}


def _variables(request: ChatCompletionRequest) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    # What the client says to the template itself goes first.
    for name in ("reasoning_effort", "verbosity"):
        if getattr(request, name) is not None:
            variables.setdefault(name, getattr(request, name))
    if request.enable_thinking is not None:
        variables.setdefault("enable_thinking", request.enable_thinking)
    if request.reasoning_effort == "none":
        variables.setdefault("enable_thinking", False)
    return variables


def _check_open_end(request: ChatCompletionRequest) -> None:
    if request.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt: false",
            param="continue_final_message",
        )
