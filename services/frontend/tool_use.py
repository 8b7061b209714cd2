"""What a chat says of tools: which are shown to the model, which it may call, or must."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from protocol.chat_members import TOOL_CHOICE
from protocol.decoding import converted
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, SharedFields
from services.frontend.parsing.base import Function

MAX_CALLS = 128  # of an answer; a model that repeats itself makes no more
MAX_FORCED_CALLS = 16  # each makes the grammar longer
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolUse:
    shown: tuple[dict[str, Any], ...] = ()  # definitions, as the template shows them
    functions: tuple[Function, ...] = ()  # what may be called
    forced: bool = False  # whether the answer must be calls and nothing else
    most: int = 0  # calls that one answer may have


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct):
    function: _Function
    type: Literal["function"] = "function"


class _Name(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Named(msgspec.Struct):
    function: _Name
    type: Literal["function"] = "function"


class _Allowed(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[_Tool]  # by name; clients may repeat their definitions


class _AllowedTools(msgspec.Struct):
    allowed_tools: _Allowed
    type: Literal["allowed_tools"]


@dataclass(frozen=True)
class _Choice:
    mode: str
    names: frozenset[str] | None = None  # of tools that may be called, None for all
    alone: bool = False  # whether one call is all there may be
    hides: bool = False  # whether the model is not to see the others


def tool_use(request: SharedFields) -> ToolUse:
    """`InvalidRequest` names the definition or the choice that is malformed."""
    if not isinstance(request, ChatCompletionRequest):
        return ToolUse()
    functions = [_defined(tool, f"tools[{i}]") for i, tool in enumerate(request.tools or ())]
    choice = _choice(request.tool_choice)
    # They are not even shown: a model that sees tools calls them anyway.
    if choice.mode == "none":
        return ToolUse()
    forced = choice.mode == "required"
    _check_names(choice, functions, forced=forced)
    callable_ = [f for f in functions if choice.names is None or f.name in choice.names]
    shown = [
        tool
        for tool, function in zip(request.tools or (), functions, strict=True)
        if not choice.hides or function in callable_
    ]
    alone = choice.alone or request.parallel_tool_calls is False
    most = 1 if alone else MAX_FORCED_CALLS if forced else MAX_CALLS
    return ToolUse(tuple(shown), tuple(callable_), forced, most if shown else 0)


def _defined(tool: Any, param: str) -> Function:
    function = converted(tool, _Tool, param).function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{param}.function.name must have 1 to 64 letters, digits, '_', '-' or '.'",
            param=f"{param}.function.name",
        )
    schema = function.parameters or {"type": "object"}
    # Not more: what a schema says further counts only where calls are held to it.
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"{param}.function.parameters.type must be 'object': arguments have names",
            param=f"{param}.function.parameters",
        )
    return Function(function.name, schema, bool(function.strict))


def _choice(choice: str | dict[str, Any] | None) -> _Choice:
    if choice is None or choice in _MODES:
        return _Choice(str(choice or "auto"))
    if isinstance(choice, str):
        raise InvalidRequest(
            "tool_choice must be 'none', 'auto', 'required' or name a function", param="tool_choice"
        )
    choice = TOOL_CHOICE.honoured(choice, "tool_choice")
    if choice.get("type") == "allowed_tools":
        allowed = converted(choice, _AllowedTools, "tool_choice").allowed_tools
        return _Choice(allowed.mode, _names(allowed.tools), hides=True)
    named = converted(choice, _Named, "tool_choice")
    return _Choice("required", _names([named]), alone=True)


def _names(tools: Iterable[_Named | _Tool]) -> frozenset[str]:
    return frozenset(tool.function.name for tool in tools)


def _check_names(choice: _Choice, functions: list[Function], *, forced: bool) -> None:
    known = {function.name for function in functions}
    unknown = sorted((choice.names or frozenset()) - known)
    if unknown:
        said = f"tools holds no function '{unknown[0]}'"
    elif forced and not (functions if choice.names is None else choice.names):
        said = "tools is empty"
    else:
        return
    raise InvalidRequest(f"tool_choice: {said}", param="tool_choice")
