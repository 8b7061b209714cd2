"""What an output must match: a schema, an expression, a choice, a grammar, or a tool call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, grammar_from

from protocol.chat_members import JSON_SCHEMA, RESPONSE_FORMAT
from protocol.decoding import converted
from protocol.errors import InvalidRequest
from protocol.openai import SharedFields
from services.frontend.grammars.json_schema import check_grammar, check_size, schema_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_GUIDED = ("json", "regex", "choice", "grammar")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`."""

    json: str | dict[str, Any] | bool | None = None  # schema, as an object or as JSON text
    regex: str | None = None  # expression that the whole output matches
    choice: list[str] | None = None  # texts, one of which the output is
    grammar: str | None = None  # as Lark or llama.cpp write it
    json_object: bool | None = None  # any JSON object
    disable_any_whitespace: bool = False  # JSON without blanks
    whitespace_pattern: str | None = None  # expression for the blanks in JSON


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
    return any(getattr(request, name) is not None for name in names)


def grammar_of(request: SharedFields, forced: Sequence[tuple[str, str]] = ()) -> str:
    """In a form of llguidance, "" if the output is free. `forced`: (field, grammar) of what else
    asks for one. `InvalidRequest` names the field that is malformed, or one too many.
    """
    found = [*_structures(request), *forced]
    if len(found) > 1:
        raise InvalidRequest(
            f"{found[0][0]} and {found[1][0]} exclude each other", param=found[1][0]
        )
    for param, grammar in found:
        check_grammar(grammar, param, param)
        return grammar
    return ""


def _structures(request: SharedFields) -> Iterator[tuple[str, str]]:
    """(field, grammar) of every field that asks for one."""
    if request.response_format is not None:
        form = _honoured(request.response_format, "response_format")
        yield from _of_format(converted(form, _Format, "response_format"))
    if request.structured_outputs is not None:
        param = "structured_outputs"
        structure = converted(request.structured_outputs, _Structure, param)
        yield from _of_structure(structure, param)
    for name in _GUIDED:
        value = getattr(request, f"guided_{name}")
        if value is not None:
            param = f"guided_{name}"
            structure = converted({name: value}, _Structure, param, inside="guided_")
            yield from _of_structure(structure, param)


def _honoured(form: Any, param: str) -> Any:
    """A format without members that have no effect."""
    if not isinstance(form, dict):
        return form
    honoured = RESPONSE_FORMAT.honoured(form, param)
    if isinstance(schema := honoured.get("json_schema"), dict):
        honoured["json_schema"] = JSON_SCHEMA.honoured(schema, f"{param}.json_schema")
    return honoured


def _of_format(wanted: _Format) -> Iterator[tuple[str, str]]:
    param = "response_format"
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise InvalidRequest("response_format.json_schema is missing", param=param)
        strict = bool(wanted.json_schema.strict)
        yield param, schema_grammar(wanted.json_schema.schema, param, strict=strict)
    elif wanted.type == "json_object":
        yield param, schema_grammar(wanted.schema or ANY_OBJECT, param, strict=False)
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
        yield param, schema_grammar(wanted.json, param, strict=True, options=options)
    if wanted.json_object:
        yield param, schema_grammar(ANY_OBJECT, param, strict=True, options=options)
    if wanted.regex is not None:
        yield param, LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.choice is not None:
        yield param, _of_choice(wanted.choice, param)
    if wanted.grammar is not None:
        yield param, _of_grammar(wanted.grammar, param)


def _of_choice(choices: list[str], param: str) -> str:
    if not choices:
        raise InvalidRequest(f"{param} must not be empty", param=param)
    quoted = (msgspec.json.encode(choice).decode() for choice in choices)
    return LLMatcher.grammar_from_lark("start: " + " | ".join(quoted))


def _of_grammar(text: str, param: str) -> str:
    """A grammar as Lark or llama.cpp write it."""
    check_size(text, param)
    try:
        return grammar_from("grammar", text)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None
