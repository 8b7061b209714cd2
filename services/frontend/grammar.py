"""What an output is held to: a schema, an expression, a choice, a grammar, or a tool call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec
from llguidance import LLMatcher, LLParserLimits, grammar_from

from protocol.decoding import field_of
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, SharedFields
from services.frontend.tokenizer import Tokenizer
from services.frontend.tools import CLOSE, OPEN

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_CHARS = 1 << 16
MAX_FORCED_CALLS = 16
_OBJECT: dict[str, Any] = {"type": "object"}
_GUIDED = ("json", "regex", "choice", "grammar")
# A blank, or a line's end and its indentation: with more, weak models never come to an end.
_GAP = r" |\r?\n[ \t]{0,32}"
_SHARED = ("$defs", "definitions")
_FREE = (None, "none", "auto")
_T = TypeVar("_T")


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None


class _Schema(msgspec.Struct):
    schema: dict[str, Any] | bool
    name: str = ""
    strict: bool | None = None


class _Format(msgspec.Struct):
    """OpenAI's `response_format`; some give `json_object` a schema."""

    type: str
    json_schema: _Schema | None = None
    schema: dict[str, Any] | None = None


def asks_for_grammar(request: SharedFields) -> bool:
    """Whether `grammar_of` has anything to look at."""
    names = ("response_format", "structured_outputs", *(f"guided_{name}" for name in _GUIDED))
    return forces_calls(request) or any(getattr(request, name) is not None for name in names)


def forces_calls(request: SharedFields) -> bool:
    """Whether the answer must be tool calls and nothing else."""
    return getattr(request, "tool_choice", None) not in _FREE


def mark_terms(tokenizer: Tokenizer) -> tuple[str, str]:
    """What opens and closes a tool call, as terms of a grammar: a token if there is one for it."""

    def term(mark: str) -> str:
        spelled: str = msgspec.json.encode(mark).decode()
        return spelled if tokenizer.id(mark) is None else mark

    return term(OPEN), term(CLOSE)


def grammar_of(request: SharedFields, marks: tuple[str, str] | None = None) -> str:
    """In a form of llguidance, "" if the output is free. `marks`: `mark_terms`, None if the model
    does not write tool calls in the form that is known. `InvalidRequest` names the field that is
    malformed, or one too many.
    """
    found = [*_structures(request), *_forced_call(request, marks)]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0][0]} and {found[1][0]} exclude each other", param=found[1][0]
        )
    for param, grammar in found:
        _check(grammar, param)
        return grammar
    return ""


def _structures(request: SharedFields) -> Iterator[tuple[str, str]]:
    """(field, grammar) of every field that asks for one."""
    if request.response_format is not None:
        yield from _of_format(_converted(request.response_format, _Format, "response_format"))
    if request.structured_outputs is not None:
        param = "structured_outputs"
        structure = _converted(request.structured_outputs, _Structure, param)
        yield from _of_structure(structure, param)
    for name in _GUIDED:
        value = getattr(request, f"guided_{name}")
        if value is not None:
            param = f"guided_{name}"
            structure = _converted({name: value}, _Structure, param, inside="guided_")
            yield from _of_structure(structure, param)


def _of_format(wanted: _Format) -> Iterator[tuple[str, str]]:
    param = "response_format"
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise InvalidRequest("response_format.json_schema is missing", param=param)
        yield param, _of_schema(wanted.json_schema.schema, param)
    elif wanted.type == "json_object":
        yield param, _of_schema(wanted.schema or _OBJECT, param)
    elif wanted.type != "text":
        raise InvalidRequest(
            "response_format.type must be 'text', 'json_object' or 'json_schema'", param=param
        )


def _of_structure(wanted: _Structure, param: str) -> Iterator[tuple[str, str]]:
    options: JsonCompileOptions = {}
    if wanted.disable_any_whitespace:
        options["whitespace_flexible"] = False
    elif wanted.whitespace_pattern is not None:
        options["whitespace_pattern"] = wanted.whitespace_pattern
    if wanted.json is not None:
        yield param, _of_schema(wanted.json, param, options)
    if wanted.json_object:
        yield param, _of_schema(_OBJECT, param, options)
    if wanted.regex is not None:
        yield param, LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        yield param, _of_choice(wanted.choice, param)
    if wanted.grammar is not None:
        yield param, _of_grammar(wanted.grammar, param)


def _of_schema(
    schema: str | dict[str, Any] | bool, param: str, options: JsonCompileOptions | None = None
) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    try:
        if not isinstance(schema, str):
            schema = msgspec.json.encode(schema).decode()
        defaults: JsonCompileOptions = {"whitespace_pattern": _GAP}
        return LLMatcher.grammar_from_json_schema(schema, overrides=options or defaults)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _of_choice(choices: list[str], param: str) -> str:
    if not choices:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    quoted = (msgspec.json.encode(choice).decode() for choice in choices)
    return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted))


def _of_grammar(text: str, param: str) -> str:
    """A grammar as Lark or llama.cpp write it."""
    _check_size(text, param)
    try:
        return grammar_from("grammar", text)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _forced_call(request: SharedFields, marks: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
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
    return _converted(choice, _Choice, "tool_choice").function.name


def _call(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call. What the arguments' schema refers to stands at its root."""
    arguments = function.get("parameters") or _OBJECT
    shared = {key: arguments[key] for key in _SHARED if key in arguments}
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": _GAP},
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


def _converted(value: Any, kind: type[_T], param: str, inside: str = "") -> _T:
    """`inside`: what comes before the name of a field that is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        field = field_of(error)
        where = f"{inside or param + '.'}{field}" if field else param
        raise InvalidRequest(f"{param}: {error}", param=where) from None


def _check(grammar: str, param: str) -> None:
    _check_size(grammar, param)
    limits = LLParserLimits(verbose_errors=False)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if failed:
        raise InvalidRequest(f"{param}: {messages[0].strip()}", param=param)


def _check_size(text: str, param: str) -> None:
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"{param} must not have more than {MAX_CHARS} characters", param=param)
