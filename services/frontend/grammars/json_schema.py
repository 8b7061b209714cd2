"""JSON schemas as clients' libraries write them, made fit for what holds outputs to them.

What only describes a value (most formats) is left out. What constrains it and cannot be enforced is
an error where the client asks for `strict`, and ignored elsewhere, as OpenAI does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, LLParserLimits

from protocol.decoding import ANY_JSON
from protocol.errors import InvalidRequest
from protocol.json_size import check_json
from services.frontend.parsing.rules import GAP, MAX_CHARS

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Json = dict[str, Any]
# What llguidance 1.9 enforces; every other format is an annotation.
_FORMATS = frozenset(
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    ]
)
_LONGEST = 300  # characters of what llguidance says: it may repeat the whole schema
_IN_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_IN_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_ALONE = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
)  # fmt: skip
# Expressions of pydantic's that look ahead, which cannot be enforced, as equal ones that do not.
_EQUAL_PATTERNS: Mapping[str, str] = MappingProxyType(
    {r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$"}  # Decimal
)


def schema_grammar(
    schema: str | Json | bool,
    param: str,
    *,
    strict: bool,
    options: JsonCompileOptions | None = None,
) -> str:
    """The grammar of a schema, in a form of llguidance, not yet checked. `InvalidRequest` names
    `param` if the schema is none."""
    chosen: JsonCompileOptions = {"whitespace_pattern": GAP}
    if options:
        chosen = {**options}
    try:
        decoded = _decoded(schema)
        check_size(msgspec.json.encode(decoded).decode(), param)  # before expressions are compiled
        fit = enforceable(decoded, strict=strict)
        if not strict:
            chosen["lenient"] = True
        spelled = msgspec.json.encode(fit).decode()
        return LLMatcher.grammar_from_json_schema(spelled, overrides=chosen)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None


def _decoded(schema: str | Json | bool) -> Any:
    if isinstance(schema, str):
        check_json(schema)
        return ANY_JSON.decode(schema)
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema


def enforceable(schema: Any, *, strict: bool) -> Any:
    """A schema without formats that are annotations and, unless `strict`, without expressions that
    cannot be enforced."""
    return everywhere(schema, partial(_without_annotations, strict=strict))


def has_pattern(schema: Any) -> bool:
    """Whether a schema, or one that lies in it at any depth, has an expression."""
    found = []

    def noted(part: Json) -> Json:
        found.append(isinstance(part.get("pattern"), str))
        return part

    everywhere(schema, noted)
    return any(found)


def everywhere(schema: Any, change: Callable[[Json], Json]) -> Any:
    """A schema in which each has been changed, it and those that lie in it at every depth; what
    else it holds stays as it is."""
    if not isinstance(schema, dict):
        return schema
    return each_part(change(schema), lambda part: everywhere(part, change))


def each_part(schema: Json, change: Callable[[Any], Any]) -> Json:
    """A schema in which those that lie in it directly have been changed."""
    fit = dict(schema)
    for key in fit.keys() & set(_IN_MAPS):
        fit[key] = _mapped(fit[key], change)
    for key in fit.keys() & {*_IN_LISTS, *_ALONE}:
        value = fit[key]
        fit[key] = [change(part) for part in value] if isinstance(value, list) else change(value)
    return fit


def _mapped(value: Any, inner: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: inner(entry) for name, entry in value.items()}


def _without_annotations(schema: Json, *, strict: bool) -> Json:
    fit = dict(schema)
    if isinstance(fit.get("format"), str) and fit["format"] not in _FORMATS:
        del fit["format"]
    if "discriminator" in fit and "oneOf" in fit and "anyOf" not in fit:
        # The discriminator is what tells the alternatives apart: no two of them match.
        fit["anyOf"] = fit.pop("oneOf")
    pattern = fit.get("pattern")
    if isinstance(pattern, str):
        fit["pattern"] = _EQUAL_PATTERNS.get(pattern, pattern)
        if not strict and not _is_enforced(fit["pattern"]):
            del fit["pattern"]
    return fit


def _is_enforced(pattern: str) -> bool:
    spelled = msgspec.json.encode({"type": "string", "pattern": pattern}).decode()
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(spelled))


def check_grammar(grammar: str, where: str, param: str) -> None:
    """`InvalidRequest` says of `where`, in the field `param`, why outputs cannot be held to it."""
    check_size(grammar, param)
    # Verbose errors show states of the parser, which mean nothing to a client.
    limits = LLParserLimits(verbose_errors=False)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if failed:
        raise InvalidRequest(f"{where}: {_explained(messages[0])}", param=param)


def check_size(text: str, param: str) -> None:
    """`InvalidRequest` if a grammar is longer than one may be."""
    if len(text) > MAX_CHARS:
        raise InvalidRequest(f"{param} must not have more than {MAX_CHARS} characters", param=param)


def _explained(message: str) -> str:
    """What llguidance says of a grammar, with what a client can do about it."""
    said, found, keys = message.strip().partition("Unimplemented keys: ")
    if not found:
        return bounded(said)
    names = ", ".join(word.strip(' "') for word in keys.strip().strip("[]").split(","))
    hint = "; it is ignored where `strict` is not set"
    return bounded(f"{said}this cannot be enforced: {names}") + hint


def bounded(message: str) -> str:
    """What llguidance says, cut where it is too long for an error."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 1]}…"
