"""A request for a response as the chat that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, decode_chat
from protocol.responses import ResponsesRequest
from protocol.responses_members import FORMAT, ITEMS, PART, TOOL, TOOL_CHOICE
from services.frontend.agent_requests import content_of, renamed, renaming, string_of

Json = dict[str, Any]
_SAME = (
    "model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "seed",
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "stop",
    "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs",
    "mm_processor_kwargs", "priority", "cache_salt", "request_id", "chat_template",
    "chat_template_kwargs", "user", "stop_token_ids", "session_id", "include_reasoning",
    "ec_transfer_params",
)  # fmt: skip
# What an answer has anyway, or never has.
_INCLUDED = ("reasoning.encrypted_content",)
_RENAMED = renaming(
    # Messages are not numbered as the items that they were made of.
    (r"messages\b[\w.\[\]]*", "input"),
    (r"max_completion_tokens\b", "max_output_tokens"),
    (r"reasoning_effort\b", "reasoning.effort"),
    (r"response_format\b(\.json_schema\b)?", "text.format"),
    (r"verbosity\b", "text.verbosity"),
    (r"(tools\[\d+\])\.function\b", r"\1"),
)


def chat_of_response(request: ResponsesRequest, before: Sequence[Json]) -> ChatCompletionRequest:
    """The chat; `before`: items of the responses that came earlier. `InvalidRequest` names the
    field of the response that is at fault."""
    _check(request)
    fields: Json = {name: getattr(request, name) for name in _SAME}
    fields["messages"] = _messages(request, before)
    fields["max_completion_tokens"] = request.max_output_tokens
    if request.reasoning is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    if request.text is not None:
        fields["verbosity"] = request.text.verbosity
        if request.text.format is not None:
            fields["response_format"] = _format(request.text.format)
    fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
    fields["tool_choice"] = _choice(request.tool_choice)
    return decode_chat(msgspec.json.encode({k: v for k, v in fields.items() if v is not None}))


def as_of_response(error: InvalidRequest) -> InvalidRequest:
    """An error of the chat, by the name that its field has in a response."""
    return renamed(error, _RENAMED)


def _check(request: ResponsesRequest) -> None:
    if request.truncation == "auto":
        raise _unsupported("truncation must be 'disabled' on this server", "truncation")
    for i, name in enumerate(request.include or ()):
        if name not in _INCLUDED:
            raise _unsupported(f"include: '{name}' is not supported", f"include[{i}]")


def _unsupported(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_field")


def items_of(request: ResponsesRequest) -> list[Json]:
    """The input as items."""
    if isinstance(request.input, str):
        return [{"type": "message", "role": "user", "content": request.input}]
    return request.input


def _messages(request: ResponsesRequest, before: Iterable[Json]) -> list[Json]:
    messages: list[Json] = []
    if request.instructions is not None:
        messages.append({"role": "system", "content": request.instructions})
    for item in before:
        _add(messages, item, "previous_response_id")
    for i, item in enumerate(items_of(request)):
        _add(messages, item, f"input[{i}]" if isinstance(request.input, list) else "input")
    return messages


def _add(messages: list[Json], item: Json, where: str) -> None:
    """Add what an item says. What the model said in one turn becomes one message."""
    kind = item.get("type") or "message"
    members = ITEMS.get(kind) if isinstance(kind, str) else None
    if members is None:
        raise _unsupported(f"{where}: items of type '{kind}' are not supported", f"{where}.type")
    item = members.honoured(item, where)
    if kind == "function_call":
        call = {
            "name": string_of(item, "name", where),
            "arguments": string_of(item, "arguments", where),
        }
        name = string_of(item, "call_id", where)
        turn = _turn(messages)
        turn.setdefault("tool_calls", []).append({"id": name, "type": "function", "function": call})
    elif kind == "function_call_output":
        content = content_of(item.get("output"), f"{where}.output", _part)
        name = string_of(item, "call_id", where)
        messages.append({"role": "tool", "tool_call_id": name, "content": content})
    elif kind == "reasoning":
        # Reasoning begins a turn, which text and calls that follow join (`_turn`).
        messages.append({"role": "assistant", "reasoning_content": _thought(item, where)})
    else:
        _add_message(messages, item, where)


def _add_message(messages: list[Json], item: Json, where: str) -> None:
    role = string_of(item, "role", where)
    content = content_of(item.get("content"), f"{where}.content", _part)
    if role == "assistant":
        _turn(messages, without="content")["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _turn(messages: list[Json], *, without: str = "") -> Json:
    """The model's turn that is under way, if it has not got that field yet."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or without in last:
        messages.append({"role": "assistant"})
    return messages[-1]


def _thought(item: Json, where: str) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise InvalidRequest(f"{where}.content must be a list", param=f"{where}.content")
    return "".join(str(PART.honoured(part, f"{where}.content").get("text", "")) for part in parts)


def _part(part: Any, where: str) -> Json:
    part = PART.honoured(part, where) if isinstance(part, dict) else {}
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return {"type": "text", "text": string_of(part, "text", where)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": string_of(part, "refusal", where)}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": string_of(part, "image_url", where)}}
    raise _unsupported(f"{where}: parts of type '{kind}' are not supported", f"{where}.type")


def _tool(tool: Json, where: str) -> Json:
    if tool.get("type") != "function":
        raise _unsupported(
            f"{where}: tools of type '{tool.get('type')}' are not supported", f"{where}.type"
        )
    honoured = TOOL.honoured(tool, where).items()
    function = {name: value for name, value in honoured if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | Json | None) -> str | Json | None:
    """The choice of a tool, which has the function's name at its own level here."""
    if not isinstance(choice, dict):
        return choice
    choice = TOOL_CHOICE.honoured(choice, "tool_choice")
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = (
            [_allowed(tool, i) for i, tool in enumerate(tools)]
            if isinstance(tools, list)
            else tools
        )
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": choice.get("mode"), "tools": named},
        }
    return choice


def _allowed(tool: Any, number: int) -> Any:
    """One of the tools that may be called: clients name it, or repeat its definition."""
    if not isinstance(tool, dict):
        return tool
    honoured = TOOL.honoured(tool, f"tool_choice.tools[{number}]")
    return {"type": honoured.get("type"), "function": {"name": honoured.get("name")}}


def _format(form: Json) -> Json:
    """`text.format`, which has a schema's fields at its own level."""
    form = FORMAT.honoured(form, "text.format")
    if form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
