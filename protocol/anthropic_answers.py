"""Answers of Anthropic's Messages API as types: what /openapi.json says of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call. Arguments that the token limit cut short stand in `input.partial_json`."""

    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(msgspec.Struct):
    """Tokens; `input_tokens` are those of the prompt that were not cached."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(msgspec.Struct, kw_only=True):
    """A whole message."""

    id: str  # msg_…
    type: Literal["message"]  # always "message"
    role: Literal["assistant"]  # always "assistant"
    model: str  # as the client named it
    # blocks, in the order in which the model wrote them
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    # None while a stream goes on
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None  # the stop string that ended it
    usage: MessageUsage  # tokens


class MessageEvent(msgspec.Struct):
    """An event of a stream; its other members follow from `type`."""

    type: str


class CountAnswer(msgspec.Struct):
    input_tokens: int


class MessageFault(msgspec.Struct):
    type: str
    message: str


class MessageError(msgspec.Struct):
    """What a request that failed is answered with."""

    error: MessageFault
    type: Literal["error"] = "error"
