"""Chat templates: jinja2 with exactly the semantics of transformers' `apply_chat_template`.

Source of the semantics: transformers 5.23, utils/chat_template_utils.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from protocol.errors import ConfigError, InvalidRequest

Message = dict[str, Any]
CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_PROBE = "triptych probe"
_KINDS = ("image", "video", "audio")


def media_part(kind: str) -> dict[str, Any]:
    """The part of a message that stands for a medium. Qwen2-Audio's published template knows it by
    the member with its URL, which it does not write."""
    return {"type": kind, "audio_url": ""} if kind == "audio" else {"type": kind}


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks assistant text for training; here it is
    transparent.
    """

    tags = {"generation"}  # noqa: RUF012, jinja2 declares it as a set

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render", [], [])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes that lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` that takes no underscore-prefixed attribute."""

    # No named arguments: a template may call a value anything, `self` too.
    def __init__(*args: Any, **kwargs: Any) -> None:
        self, rest = args[0], args[1:]
        values = dict(*rest, **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} is not allowed")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    # Local time, as transformers has it.
    return datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    # jinja2's own escapes < and > for HTML, which no model was trained on.
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_Dict(),
        namespace=_Namespace,
    )
    return environment


class ChatTemplate:
    """One compiled template.

    `takes_parts`: it renders content given as a list of parts. `takes_strings`: it renders content
    given as a string. `reads_tools`: it shows definitions of tools to the model.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`ConfigError` if the template does not compile."""
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            self.reads_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from None
        self.source = source
        self._special_tokens = dict(special_tokens)
        parts = self._probe([{"type": "text", "text": _PROBE}])
        # A template that writes its input as it is shows the part's keys: it knows no parts.
        self.takes_parts = _PROBE in parts and "'type'" not in parts and '"type"' not in parts
        self.takes_strings = _PROBE in self._probe(_PROBE)
        # Asked once: each probe runs the whole template.
        self._marked = [kind for kind in _KINDS if self.takes_parts and self._adds(kind, parts)]

    def marks(self, kind: str) -> bool:
        """Whether it writes something for a part of this type, which is one of media."""
        return kind in self._marked

    def _adds(self, kind: str, text: str) -> bool:
        """Whether a part of this type changes what became of one with text."""
        return self._probe([media_part(kind), {"type": "text", "text": _PROBE}]) != text

    def _probe(self, content: Any) -> str:
        try:
            return self.render([{"role": "user", "content": content}])
        except InvalidRequest:
            return ""

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `InvalidRequest` (messages) if the template refuses its input."""
        names = {**self._special_tokens, **(variables or {})}
        # Last: variables are the client's, and must not replace the messages.
        names.update(
            messages=messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
        )
        try:
            return self._template.render(names)
        except Exception as error:  # any error of a template is due to what it was given
            raise InvalidRequest(
                f"the chat template cannot render these messages: {error}", param="messages"
            ) from error

    def render_open_end(self, messages: Sequence[Message], **options: Any) -> str:
        """As `render`, but the last message's text stays open, for the model to continue it."""
        tagged, ending = _tag_last(messages)
        text = self.render(tagged, add_generation_prompt=False, **options)
        # The last one: a client may have written the tag before.
        place = text.rfind(CONTINUE_TAG.strip())
        if place < 0 or ending.strip() not in text:
            raise InvalidRequest(
                "the chat template does not show the end of the final message, so that it cannot "
                "be continued",
                param="continue_final_message",
            )
        # Templates that trim content take the tag's blank: then the blanks before it go too.
        kept = text[place : place + len(CONTINUE_TAG)] == CONTINUE_TAG
        return text[:place] if kept else text[:place].rstrip()


def _tag_last(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """Messages with a tag after the last text of the last one, and that text."""
    *before, last = messages
    content: Any = last.get("content") or []
    if isinstance(content, str):
        return [*before, {**last, "content": content + CONTINUE_TAG}], content
    for index in reversed(range(len(content))):
        text = content[index].get("text")
        if text is not None:
            parts = [*content]
            parts[index] = {**content[index], "text": text + CONTINUE_TAG}
            return [*before, {**last, "content": parts}], text
    raise InvalidRequest(
        "continue_final_message: the final message has no text to continue",
        param="continue_final_message",
    )
