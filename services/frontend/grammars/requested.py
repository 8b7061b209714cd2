"""What an output must match: a schema, an expression, a choice, a grammar, or calls that a client
forces; and what comes before an answer that is held to one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, grammar_from

from protocol.chat_members import JSON_SCHEMA, RESPONSE_FORMAT
from protocol.decoding import converted
from protocol.errors import InvalidRequest
from protocol.openai import SharedFields
from services.frontend.grammars.json_schema import (
    check_grammar,
    check_size,
    enforceable,
    has_pattern,
    schema_grammar,
)
from services.frontend.grammars.references import anchored
from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.reading import Reading
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.tokenizer import Tokenizer
from services.frontend.tool_use import ToolUse

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


async def grammar_for(
    request: SharedFields, use: ToolUse, form: type[ToolFormat] | None, tokenizer: Tokenizer
) -> str:
    """What the output must match, "" if it is free. A large grammar takes some ten milliseconds to
    check, on a thread of its own."""

    def made() -> str:
        forced = []
        if use.forced and form is not None:
            forced.append(("tool_choice", forced_call(use, form, tokenizer)))
        return grammar_of(request, forced)

    if not (use.forced or asks_for_grammar(request)):
        return ""
    return await asyncio.to_thread(made)


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
    return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, choices))}")


def _of_grammar(text: str, param: str) -> str:
    """A grammar as Lark or llama.cpp write it."""
    check_size(text, param)
    try:
        return grammar_from("grammar", text)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def forced_call(use: ToolUse, form: type[ToolFormat], tokenizer: Tokenizer) -> str:
    """The grammar of an answer that is nothing but calls, in a form of llguidance."""
    rules = Rules(tokenizer.id)
    try:
        _check_patterns(use.functions)
        functions = [_enforceable(function) for function in use.functions]
        form().grammar(functions, use.most, rules)
    # Schemas of a client are walked recursively.
    except RecursionError:
        raise InvalidRequest("tools are nested too deeply", param="tools") from None
    return LLMatcher.grammar_from_lark(rules.lark())


def after_reasoning(grammar: str, reading: Reading, tokenizer: Tokenizer) -> str:
    """`grammar` for an answer that begins with reasoning, or with the head of a message, which are
    no part of what the client asked for."""
    rules = Rules(tokenizer.id)
    if reading.thinking is not None and reading.inside:
        opening = f'{rules.text_before(reading.thinking.close)} ("\\n\\n")?'
    elif reading.tools is not None and reading.tools.always and not reading.only:
        opening = reading.tools.opening(rules)
    else:
        return grammar
    rules.add("start", f"{opening} @answer")
    first, *others = msgspec.json.decode(grammar)["grammars"]
    parts = [{"lark_grammar": rules.lark()}, {**first, "name": "answer"}, *others]
    return msgspec.json.encode({"grammars": parts}).decode()


def _check_patterns(functions: Sequence[Function]) -> None:
    """`InvalidRequest` if it would take long to compile each expression that the functions have."""
    # Functions without any are not counted: most of their text describes them.
    schemas = [f.parameters for f in functions if has_pattern(f.parameters)]
    check_size(msgspec.json.encode(schemas).decode(), "tools")


def _enforceable(function: Function) -> Function:
    """`InvalidRequest` if the function is strict and has what cannot be enforced, or refers to
    nothing."""
    if function.strict:
        param = f"tools: the parameters of {function.name}"
        check_grammar(schema_grammar(function.parameters, "tools", strict=True), param, "tools")
    fit = enforceable(function.parameters, strict=function.strict)
    return replace(function, parameters=anchored(replace(function, parameters=fit)))
