"""A request in Anthropic's form as the chat that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from protocol.anthropic import (
    CountRequest,
    MessagesRequest,
    MessageTurn,
    OutputConfig,
    Tool,
    ToolChoice,
)
from protocol.anthropic_members import BLOCKS, FORMAT, SOURCE
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, decode_chat
from services.frontend.agent_requests import content_of, renamed, renaming, string_of

Json = dict[str, Any]
_MODES: Mapping[str, str] = MappingProxyType({"auto": "auto", "any": "required", "none": "none"})
_RENAMED = renaming(
    (r"max_completion_tokens\b", "max_tokens"),
    (r"stop\b", "stop_sequences"),
    (r"reasoning_effort\b", "output_config.effort"),
    (r"parallel_tool_calls\b", "tool_choice.disable_parallel_tool_use"),
    (r"(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function\b", r"\1"),
)
_FORM = r"response_format\b(\.json_schema\b)?"


def as_of_message(error: InvalidRequest, request: CountRequest) -> InvalidRequest:
    """An error of the chat, by the name that its field has in a message's request."""
    config = request.output_config
    form = "output_config.format" if config and config.format is not None else "output_format"
    return renamed(error, (*_RENAMED, *renaming((_FORM, form))))


def chat_of_message(request: CountRequest) -> ChatCompletionRequest:
    """The chat; `InvalidRequest` names the field that is at fault."""
    fields: Json = {
        "model": request.model,
        "messages": list(_messages(request)),
        "cache_salt": request.cache_salt,
    }
    if isinstance(request, MessagesRequest):
        fields |= {
            "max_completion_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            "ec_transfer_params": request.ec_transfer_params,
            **{
                name: getattr(request, name) for name in ("stream", "temperature", "top_p", "top_k")
            },
        }
    if request.tools:
        fields["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    if request.tool_choice is not None:
        fields["tool_choice"] = _choice(request.tool_choice)
        fields["parallel_tool_calls"] = not request.tool_choice.disable_parallel_tool_use
    told = dict(request.chat_template_kwargs or {})
    if request.thinking is not None:
        # chat_template_kwargs win: they speak to the template itself.
        told = {"enable_thinking": request.thinking.type != "disabled", **told}
    fields["chat_template_kwargs"] = told or None
    config = request.output_config or OutputConfig()
    fields["reasoning_effort"] = config.effort
    if config.format is not None:
        fields["response_format"] = _format(config.format, "output_config.format")
    elif request.output_format is not None:
        fields["response_format"] = _format(request.output_format, "output_format")
    return decode_chat(msgspec.json.encode({k: v for k, v in fields.items() if v is not None}))


def _messages(request: CountRequest) -> Iterator[Json]:
    if isinstance(request.system, str):
        yield {"role": "system", "content": request.system}
    elif request.system is not None:
        texts = [_text(part, f"system[{i}]") for i, part in enumerate(request.system)]
        yield {"role": "system", "content": "\n".join(texts)}
    for i, message in enumerate(request.messages):
        where = f"messages[{i}].content"
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            yield _said(message.content, where)
        else:
            yield from _asked(message, message.content, where)


def _said(blocks: list[Json], where: str) -> Json:
    """A turn of the model's."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for i, block in enumerate(blocks):
        kind, place = block.get("type"), f"{where}[{i}]"
        block = _honoured(block, place)
        if kind == "text":
            texts.append(string_of(block, "text", place))
        elif kind == "thinking":
            thoughts.append(string_of(block, "thinking", place))
        elif kind == "tool_use":
            function = {
                "name": string_of(block, "name", place),
                "arguments": block.get("input", {}),
            }
            name = string_of(block, "id", place)
            calls.append({"id": name, "type": "function", "function": function})
        # Encrypted thoughts of Anthropic's own models, which clients send back: nothing to read
        # here.
        elif kind != "redacted_thinking":
            raise _unknown(kind, place)
    message: Json = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _asked(message: MessageTurn, blocks: list[Json], where: str) -> Iterator[Json]:
    """What a user says, after the results that it brings, each of which is a message."""
    parts: list[Json] = []
    for i, block in enumerate(blocks):
        place = f"{where}[{i}]"
        if block.get("type") == "tool_result":
            yield _result(_honoured(block, place), place)
        else:
            parts.append(_part(block, place))
    if parts:
        yield {"role": message.role, "content": parts}


def _result(block: Json, where: str) -> Json:
    name = string_of(block, "tool_use_id", where)
    content = content_of(block.get("content") or "", f"{where}.content", _part)
    message: Json = {"role": "tool", "tool_call_id": name, "content": content}
    if (failed := block.get("is_error")) is None:
        return message
    if not isinstance(failed, bool):
        raise InvalidRequest(f"{where}.is_error must be true or false", param=f"{where}.is_error")
    return {**message, "is_error": failed}


def _honoured(block: Json, where: str) -> Json:
    """A block without what has no effect."""
    kind = block.get("type")
    members = BLOCKS.get(kind) if isinstance(kind, str) else None
    if members is None:
        raise _unknown(kind, where)
    return members.honoured(block, where)


def _part(block: Any, where: str) -> Json:
    block = _honoured(block, where) if isinstance(block, dict) else {}
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": string_of(block, "text", where)}
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": _url(block.get("source"), where)}}
    raise _unknown(kind, where)


def _url(source: Any, where: str) -> str:
    where = f"{where}.source"
    source = SOURCE.honoured(source, where) if isinstance(source, dict) else {}
    kind = source.get("type")
    if kind == "url":
        return string_of(source, "url", where)
    if kind == "base64":
        media = string_of(source, "media_type", where)
        return f"data:{media};base64,{string_of(source, 'data', where)}"
    raise InvalidRequest(f"{where}.type must be 'base64' or 'url'", param=f"{where}.type")


def _text(part: Json, where: str) -> str:
    if part.get("type") != "text":
        raise _unknown(part.get("type"), where)
    return string_of(_honoured(part, where), "text", where)


def _unknown(kind: Any, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}: blocks of type '{kind}' are not supported",
        param=f"{where}.type",
        code="unsupported_field",
    )


def _tool(tool: Tool, where: str) -> Json:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{where}: tools of type '{tool.type}' are not supported",
            param=f"{where}.type",
            code="unsupported_field",
        )
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _format(form: Json, where: str) -> Json:
    """A schema that the answer keeps to."""
    form = FORMAT.honoured(form, where)
    schema = form.get("schema")
    if form.get("type") != "json_schema" or not isinstance(schema, dict):
        raise InvalidRequest(
            f'{where} must be {{"type": "json_schema", "schema": an object}}', param=where
        )
    named = {"name": "output", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": named}


def _choice(choice: ToolChoice) -> str | Json:
    if choice.type != "tool":
        return _MODES[choice.type]
    if choice.name is None:
        raise InvalidRequest("tool_choice.name is missing", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}
