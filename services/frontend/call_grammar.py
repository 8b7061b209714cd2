"""Tool calls that a client forces: a grammar of calls, as the model itself writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import msgspec
from llguidance import LLMatcher

from protocol.decoding import converted
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, SharedFields
from services.frontend.tokenizer import Tokenizer
from services.frontend.tools import CLOSE, OPEN

MAX_FORCED_CALLS = 16
ANY_OBJECT: dict[str, Any] = {"type": "object"}
# A blank, or a line's end and its indentation: with more, weak models never come to an end.
GAP = r" |\r?\n[ \t]{0,32}"
_SHARED = ("$defs", "definitions")
_FREE = (None, "none", "auto")


def forces_calls(request: SharedFields) -> bool:
    """Whether the answer must be tool calls and nothing else."""
    return getattr(request, "tool_choice", None) not in _FREE


def mark_terms(tokenizer: Tokenizer) -> tuple[str, str]:
    """What opens and closes a tool call, as terms of a grammar: a token if there is one for it."""

    def term(mark: str) -> str:
        spelled: str = msgspec.json.encode(mark).decode()
        return spelled if tokenizer.id(mark) is None else mark

    return term(OPEN), term(CLOSE)


def forced_call(request: SharedFields, marks: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    """(field, grammar) of a chat that must call one of its tools."""
    if not isinstance(request, ChatCompletionRequest) or request.tool_choice in _FREE:
        return
    name = _forced_name(request.tool_choice)
    functions = filter(_is_function, (tool.get("function") for tool in request.tools or ()))
    calls = [_call(function) for function in functions if name in (None, function["name"])]
    if not calls:
        wanted = "tools is empty" if name is None else f"tools holds no function '{name}'"
        raise InvalidRequest(f"tool_choice: {wanted}", param="tool_choice")
    if marks is None:
        raise InvalidRequest(
            "tool_choice: the form in which this model writes tool calls is unknown",
            param="tool_choice",
            code="unsupported_field",
        )
    alone = name is not None or request.parallel_tool_calls is False
    most = 1 if alone else MAX_FORCED_CALLS
    yield "tool_choice", _of_calls(calls, most, marks)


def _is_function(function: Any) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(function, dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("parameters") or {}, dict)
    )


class _Named(msgspec.Struct):
    name: str


class _Choice(msgspec.Struct):
    function: _Named


def _forced_name(choice: str | dict[str, Any] | None) -> str | None:
    """The function that must be called, None for any."""
    if choice == "required":
        return None
    if isinstance(choice, str):
        raise InvalidRequest(
            "tool_choice must be 'none', 'auto', 'required' or name a function", param="tool_choice"
        )
    return converted(choice, _Choice, "tool_choice").function.name


def _call(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call. What the arguments' schema refers to stands at its root."""
    arguments = function.get("parameters") or ANY_OBJECT
    shared = {key: arguments[key] for key in _SHARED if key in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": GAP},
        **shared,
    }


def _of_calls(calls: list[dict[str, Any]], most: int, marks: tuple[str, str]) -> str:
    """Calls as the model itself writes them."""
    schemas = [msgspec.json.encode(call).decode() for call in calls]
    bodies = "\n".join(f"body{i}: %json {schema}" for i, schema in enumerate(schemas))
    more = f' ("\\n" call){{0,{most - 1}}}' if most > 1 else ""
    names = " | ".join(f"body{i}" for i in range(len(schemas)))
    return LLMatcher.grammar_from_lark(
        f'start: call{more}\ncall: {marks[0]} "\\n" body "\\n" {marks[1]}\nbody: {names}\n{bodies}'
    )
