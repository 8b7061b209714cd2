"""Parameters that a model writes one by one, as text between marks, told as one JSON object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from services.frontend.parsing.base import Function, Json, constants_of, properties_of, required_of
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.rules import Rules, shared
from services.frontend.parsing.source import Source, Steps
from services.frontend.parsing.value_types import ANY, ValueTypes, type_of


class Parameters:
    """Of the call that `out` has begun. A parameter that may only be a string is told as it grows;
    any other once it is complete, as JSON if it is some, otherwise as a string."""

    def __init__(self, out: Listener, function: Function | None) -> None:
        self._out = out
        self._function = function
        self._types = ValueTypes(function.parameters if function is not None else {})
        self._count = 0

    def read(
        self, name: str, source: Source, close: str, *, trim: bool, schema: Json | None = None
    ) -> Steps[bool]:
        """Read a value up to `close`; False if that does not come. `trim`: a line's end after the
        opening mark, and one before `close`, belong to the form. `schema`: of the value, where the
        form tells it; else the function's is looked up."""
        self._out.arguments(f"{', ' if self._count else '{'}{_spelled(name)}: ")
        self._count += 1
        if trim:
            yield from source.take("\n")
        if schema is None:
            schema = self._function.schema_of(name) if self._function is not None else {}
        if not only_strings(schema):
            value, mark = yield from source.until([close])
            types = self._types.of(schema)
            self._out.arguments(_value(value.removesuffix("\n") if trim else value, types))
            return bool(mark)
        self._out.arguments('"')
        text = _Trimmed(self._out.arguments, trim=trim)
        mark = yield from source.pass_to(text.add, [close])
        if mark:
            self._out.arguments('"')
        return bool(mark)

    def end(self) -> None:
        """No more parameters come."""
        self._out.arguments("}" if self._count else "{}")


def read_parameters(
    out: Listener,
    function: Function | None,
    source: Source,
    key: Callable[[Source], Steps[str | None]],
    close: str,
    *,
    trim: bool,
) -> Steps[None]:
    """Tell the arguments of the call that `out` has begun. `key` reads a parameter's name, None if
    no more parameters come; `close` ends a value. Ends early where the text does."""
    parameters = Parameters(out, function)
    complete = True
    while complete:
        yield from source.blanks()
        name = yield from key(source)
        if name is None:
            parameters.end()
            return
        complete = yield from parameters.read(name, source, close, trim=trim)


class _Trimmed:
    """Text as the inside of a JSON string; a line's end is held back while it may be the last."""

    def __init__(self, sink: Callable[[str], None], *, trim: bool) -> None:
        self._sink = sink
        self._trim = trim
        self._held = ""

    def add(self, piece: str) -> None:
        piece = self._held + piece
        self._held = "\n" if self._trim and piece.endswith("\n") else ""
        self._sink(_spelled(piece.removesuffix(self._held))[1:-1])


def _spelled(text: str) -> str:
    spelled: str = msgspec.json.encode(text).decode()
    return spelled


def only_strings(schema: Json) -> bool:
    """Whether a value can be nothing but a string, which is written without quotation marks."""
    kinds, constants = schema.get("type"), constants_of(schema)
    if kinds is None and constants:
        return all(isinstance(constant, str) for constant in constants)
    return kinds in ("string", ["string"])


def _value(text: str, types: frozenset[str]) -> str:
    """A value as JSON, of one of `types`: booleans and null in Python's spelling too."""
    # Blanks belong to a string, and to no other value.
    text = text.strip() if types == ANY or "string" not in types else text
    plain = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    try:
        found = type_of(msgspec.json.decode(plain))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _spelled(text)
    # A string in quotation marks is one as forced calls have it.
    fits = found in types or found == "string" or "string" not in types
    return plain if fits else _spelled(text)


def written_parameters(
    function: Function, rules: Rules, write: Callable[[str, str], str], text_end: str
) -> str:
    """Terms of a grammar for a function's parameters, in the order of its schema.

    `write(name, value)`: one parameter; its value's terms come with `text_end`, which ends it.
    """
    required = required_of(function.parameters)
    terms = []
    for name, schema in properties_of(function.parameters).items():
        term = write(name, _written(schema, function, rules, text_end))
        terms.append(term if name in required else f"({term})?")
    return " ".join(terms)


def _written(schema: Json, function: Function, rules: Rules, end: str) -> str:
    choices = constants_of(schema)
    if choices:
        return f"{rules.one_of(map(_plain, choices))} {rules.mark(end)}"
    if only_strings(schema):
        return rules.text_before(end)
    return f"{rules.json({**schema, **shared(function.parameters)})} {rules.mark(end)}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
