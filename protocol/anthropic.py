"""Anthropic's Messages API: its requests as types."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from protocol import anthropic_members as members
from protocol.agent_fields import MESSAGES
from protocol.bounds import Positive, Temperature, TopK, TopP
from protocol.decoding import accepted
from protocol.request_fields import Members, RequestParser

_S = TypeVar("_S", bound=msgspec.Struct)
_R = TypeVar("_R", bound="CountRequest")
MESSAGES_PATH = "/v1/messages"
Json = dict[str, Any]


class MessageTurn(msgspec.Struct):
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
    """Whether the template is asked for reasoning."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(msgspec.Struct):
    """`format`: `{"type": "json_schema", "schema": …}`."""

    effort: str | None = None
    format: Json | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of; each field has its row in `protocol.agent_fields`."""

    messages: list[MessageTurn]  # the conversation, in turns
    model: str | None = None  # name that is served; None: the model that is served
    system: str | list[Json] | None = None  # system message, as text or text blocks
    tools: list[Tool] | None = None  # functions that the model may call
    tool_choice: ToolChoice | None = None  # whether it must call one, and which
    thinking: Thinking | None = None  # whether it thinks before it answers
    output_config: OutputConfig | None = None  # effort and format of the answer
    output_format: Json | None = None  # as output_config.format
    chat_template_kwargs: Json | None = None  # variables of the chat template
    cache_salt: str | None = None  # prefixes are shared only among requests with the same one


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Positive  # output tokens at most
    stream: bool | None = None  # answer by server-sent events
    stop_sequences: list[str] | None = None  # strings that end the answer
    temperature: Temperature | None = None  # 0 for greedy
    top_p: TopP | None = None  # probability mass to draw from
    top_k: TopK | None = None  # likeliest tokens to draw from
    ec_transfer_params: Json | None = None  # handles of embeddings, by media hash


_RAW: Json = {
    "messages": list[Json],
    "tools": list[Json] | None,
    "tool_choice": Json | None,
    "thinking": Json | None,
    "output_config": Json | None,
}
_TYPES: Json = {
    "messages": list[MessageTurn],
    "tools": list[Tool] | None,
    "tool_choice": ToolChoice | None,
    "thinking": Thinking | None,
    "output_config": OutputConfig | None,
}
_MESSAGES = RequestParser.of(MessagesRequest, MESSAGES, "messages", **_RAW)
_COUNT = RequestParser.of(CountRequest, MESSAGES, "messages", **_RAW)
MESSAGES_BODY, COUNT_BODY = _MESSAGES.described(**_TYPES), _COUNT.described(**_TYPES)
"""The bodies as /openapi.json describes them."""


def decode_messages(data: bytes) -> MessagesRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return accepted(_read, _MESSAGES.parsed(data))


def decode_count(data: bytes) -> CountRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    return accepted(_read, _COUNT.parsed(data))


def _read(request: _R) -> _R:
    """The request with its objects as structs, which are dicts as the parser decodes them."""
    request.messages = _all(request.messages, members.MESSAGE, MessageTurn, "messages")
    if request.tools is not None:
        request.tools = _all(request.tools, members.TOOL, Tool, "tools")
    for name, kind, struct in (
        ("tool_choice", members.TOOL_CHOICE, ToolChoice),
        ("thinking", members.ENABLED, Thinking),
        ("output_config", members.OUTPUT, OutputConfig),
    ):
        if isinstance(given := getattr(request, name), dict):
            setattr(request, name, kind.converted(given, struct, name))
    return request


def _all(given: Any, kind: Members, struct: type[_S], where: str) -> list[_S]:
    return [kind.converted(one, struct, f"{where}[{i}]") for i, one in enumerate(given)]
