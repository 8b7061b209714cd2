"""Anthropic's Messages API: its requests as types."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.agent_fields import MESSAGES
from protocol.bounds import Positive, Temperature, TopK, TopP
from protocol.request_parser import RequestParser

MESSAGES_PATH = "/v1/messages"
Json = dict[str, Any]


class Message(msgspec.Struct):
    """`content`: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Json]


class Tool(msgspec.Struct):
    name: str
    input_schema: Json | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct):
    """Whether the template is asked for reasoning. A budget is not enforced."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Positive | None = None


class OutputConfig(msgspec.Struct):
    """`format`: `{"type": "json_schema", "schema": …}`. Other parts are ignored."""

    effort: str | None = None
    format: Json | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of."""

    messages: list[Message]
    model: str | None = None
    system: str | list[Json] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Json | None = None
    chat_template_kwargs: Json | None = None


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None


_MESSAGES = RequestParser.of(MessagesRequest, MESSAGES, "messages")
_COUNT = RequestParser.of(CountRequest, MESSAGES, "messages")
MESSAGES_BODY, COUNT_BODY = _MESSAGES.described(), _COUNT.described()
"""The bodies as /openapi.json describes them."""


def decode_messages(data: bytes) -> MessagesRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return _MESSAGES.parsed(data)


def decode_count(data: bytes) -> CountRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return _COUNT.parsed(data)
