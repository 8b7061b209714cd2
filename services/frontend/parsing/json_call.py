"""A call as a JSON object, and the form of Hermes, Qwen2.5, Qwen3 and Qwen2.5-VL, which has it
between two marks.

<tool_call>
{"name": "weather", "arguments": {"city": "Bern"}}
</tool_call>
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from services.frontend.parsing.base import Function, Json, ToolFormat
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.rules import Rules, shared
from services.frontend.parsing.source import Source, Steps

KEYS = ("arguments", "parameters")


@dataclass
class _Call:
    name: str = ""
    early: str | None = None  # arguments that came before the name
    begun: bool = False


def read_json_call(
    source: Source, out: Listener, known: Collection[str] | None = None
) -> Steps[bool]:
    """Read one, and tell it as it grows; False, and nothing told, if there is none.

    Arguments stay as the model wrote them; some write them as a string of JSON, which is what
    clients get anyway. `known`: the only names that make it a call, None for any.
    """
    call = _Call()
    complete = yield from _members(source, out, call, known)
    if complete and not call.begun and _is_name(call.name, known):
        out.begin(call.name)
        call.begun = True
        out.arguments(call.early or "")
    if call.begun:
        out.end()
    return call.begun


def _members(
    source: Source, out: Listener, call: _Call, known: Collection[str] | None
) -> Steps[bool]:
    """Whether the object has come to its end."""
    if not (yield from source.take("{")):
        return False
    while True:
        yield from source.blanks()
        key = yield from source.quoted_word()
        yield from source.blanks()
        if not key or not (yield from source.take(":")):
            return False
        yield from source.blanks()
        if not (yield from _member(key, source, out, call, known)):
            return False
        yield from source.blanks()
        if (yield from source.take("}")):
            return True
        if not (yield from source.take(",")):
            return False


def _member(
    key: str, source: Source, out: Listener, call: _Call, known: Collection[str] | None
) -> Steps[bool]:
    if key == "name" and not call.name:
        call.name = yield from source.quoted_word()
        return _is_name(call.name, known)
    if key in KEYS and not call.begun and call.early is None:
        return (yield from _arguments(source, out, call))
    # Members that are neither: models add ids and types.
    return (yield from source.json(lambda piece: None))


def _arguments(source: Source, out: Listener, call: _Call) -> Steps[bool]:
    first = yield from source.peek()
    if first == "n":
        call.early = ""
        return (yield from source.take("null"))
    # Some models write the object as a string of JSON.
    if first == '"':
        text = yield from source.json_string()
        call.early = text
        return text is not None
    if first != "{":
        return False
    # Held back: a call begins with its name.
    if not call.name:
        parts: list[str] = []
        complete = yield from source.json(parts.append)
        call.early = "".join(parts)
        return complete
    out.begin(call.name)
    call.begun = True
    return (yield from source.json(out.arguments, keep=False))


def _is_name(name: str, known: Collection[str] | None) -> bool:
    return bool(name) and (known is None or name in known)


def json_call_schema(function: Function, key: str = "arguments") -> Json:
    """The schema of a call. What the arguments' schema refers to stands at its root."""
    return {
        "type": "object",
        "properties": {"name": {"const": function.name}, key: function.parameters},
        "required": ["name", key],
        "additionalProperties": False,
        **shared(function.parameters),
    }


OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(ToolFormat):
    """What is between the marks and is no call stays in the text, marks included."""

    marks = (OPEN, CLOSE)

    def read(self, source: Source, out: Listener) -> Steps[None]:
        while (yield from source.pass_to(out.text, [OPEN])):
            yield from source.blanks()
            if (yield from read_json_call(source, out)):
                yield from source.skip_call_end(CLOSE, OPEN)
            else:
                out.text(source.taken)

    def written(self, function: Function, rules: Rules) -> str:
        body = rules.json(json_call_schema(function))
        return f'{rules.mark(OPEN)} "\\n" {body} "\\n" {rules.mark(CLOSE)}'

    def between(self, rules: Rules) -> str:
        return '"\\n"'
