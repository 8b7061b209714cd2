"""Calls that a model has made, as the chat template reads them: arguments are objects."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.chat_messages import ChatMessage, FunctionCall, ToolCall
from protocol.decoding import ANY_OBJECT
from protocol.errors import InvalidRequest
from protocol.json_size import check_json


def check_arguments(messages: list[ChatMessage]) -> None:
    """`PayloadTooLarge` if it would take long to decode those of all calls, which are texts in the
    JSON of the request."""
    calls = (call for message in messages for call in message.tool_calls or ())
    texts = (call.function.arguments for call in calls)
    check_json("".join(text for text in texts if isinstance(text, str)))


def tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    function = {
        **(call.function.others or {}),
        "name": call.function.name,
        "arguments": _arguments(call.function, f"{where}.function.arguments"),
    }
    fields: dict[str, Any] = {
        **(call.others or {}),
        "type": call.type or "function",
        "function": function,
    }
    if call.id is not None:
        fields["id"] = call.id
    return fields


def _arguments(function: FunctionCall, where: str) -> dict[str, Any]:
    """Arguments as the object that templates write out; OpenAI's form is its JSON text."""
    if isinstance(function.arguments, dict):
        return function.arguments
    if function.arguments is None or not function.arguments.strip():
        return {}
    try:
        return ANY_OBJECT.decode(function.arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"arguments must be a JSON object: {error}", param=where) from None
