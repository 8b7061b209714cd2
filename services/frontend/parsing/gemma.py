"""The forms of FunctionGemma and Gemma 4, which differ in their marks.

<start_function_call>call:weather{city:<escape>Bern<escape>,days:[1,2]}<end_function_call>
<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:[1,2]}<tool_call|>
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import msgspec

from services.frontend.parsing.base import Function, ToolFormat
from services.frontend.parsing.gemma_values import Values
from services.frontend.parsing.heard import Listener
from services.frontend.parsing.rules import Rules, quoted
from services.frontend.parsing.source import Source, Steps

MAX_DEPTH = 32
_ENDS: Mapping[str, str] = MappingProxyType({"{": "}", "[": "]"})


class Gemma4Format(ToolFormat):
    """An object without quotation marks around keys, with a mark around strings."""

    marks: ClassVar[tuple[str, ...]] = ("<|tool_call>", "<tool_call|>", '<|"|>')

    def read(self, source: Source, out: Listener) -> Steps[None]:
        opening, close, _ = self.marks
        while (yield from source.pass_to(out.text, [opening])):
            if (yield from self._call(source, out)):
                yield from source.skip_call_end(close, opening)
            else:
                out.text(source.taken)

    def _call(self, source: Source, out: Listener) -> Steps[bool]:
        if not (yield from source.take("call:")):
            return False
        name = yield from source.word()
        if not name or (yield from source.peek()) != "{":
            return False
        out.begin(name)
        yield from self._value(source, out, 0)
        out.end()
        return True

    def _value(self, source: Source, out: Listener, depth: int) -> Steps[bool]:
        """Tell one value as JSON; False where it does not go on."""
        yield from source.blanks()
        quote = self.marks[2]
        first = yield from source.peek()
        # Each level is a generator within others: without a bound Python's stack would end.
        if first in ("{", "[") and depth < MAX_DEPTH:
            return (yield from self._members(source, out, first, depth))
        if first == quote[0] and (yield from source.take(quote)):
            out.arguments('"')
            closed = yield from source.pass_to(lambda piece: out.arguments(_inside(piece)), [quote])
            out.arguments('"' if closed else "")
            return bool(closed)
        if first == '"':
            return (yield from source.json(out.arguments, keep=False))
        word = yield from source.word()
        out.arguments(_plain(word) if word else "")
        return bool(word)

    def _members(self, source: Source, out: Listener, first: str, depth: int) -> Steps[bool]:
        yield from source.take(first)
        out.arguments(first)
        count = 0
        while True:
            yield from source.blanks()
            if (yield from source.take(_ENDS[first])):
                out.arguments(_ENDS[first])
                return True
            if count:
                if not (yield from source.take(",")):
                    return False
                out.arguments(", ")
            if first == "{" and not (yield from self._key(source, out)):
                return False
            if not (yield from self._value(source, out, depth + 1)):
                return False
            count += 1

    def _key(self, source: Source, out: Listener) -> Steps[bool]:
        yield from source.blanks()
        for mark in (self.marks[2], '"'):
            if (yield from source.take(mark)):
                key, _ = yield from source.until([mark], most=256)
                yield from source.blanks()
                yield from source.take(":")
                break
        else:
            key, _ = yield from source.until([":"], most=256)
        out.arguments(f'"{_inside(key)}": ')
        return bool(key)

    def written(self, function: Function, rules: Rules) -> str:
        opening, close, quote = self.marks
        body = Values(rules, quote, function.parameters).written(function.parameters)
        return f"{rules.mark(opening)} {quoted(f'call:{function.name}')} {body} {rules.mark(close)}"


class FunctionGemma(Gemma4Format):
    marks = ("<start_function_call>", "<end_function_call>", "<escape>")


def _inside(text: str) -> str:
    """`text` as the inside of a JSON string."""
    spelled: str = msgspec.json.encode(text).decode()
    return spelled[1:-1]


def _plain(word: str) -> str:
    """A number, a boolean or null as it stands; other words as strings."""
    try:
        msgspec.json.decode(word)
    except (msgspec.DecodeError, UnicodeError):
        return f'"{_inside(word)}"'
    return word
