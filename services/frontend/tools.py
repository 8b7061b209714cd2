"""Tool calls in a text that arrives piece by piece, in the form of Hermes, Qwen2.5 and Qwen3:

<tool_call>
{"name": "weather", "arguments": {"city": "Bern"}}
</tool_call>
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from protocol.openai_answers import CalledFunction, CalledTool
from services.frontend.stopping import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_MARKS = re.compile(rf'\\.|"|{CLOSE}', re.DOTALL)


@dataclass(frozen=True)
class Heard:
    """`text` is for the client to read, `calls` are for it to make."""

    text: str
    calls: tuple[CalledTool, ...] = ()


class ToolCalls:
    """Takes calls out of a text, and the white space before them; `most` of them, others are
    dropped. A call is told once it is complete, which the first closing mark outside its strings
    makes it. What looks like one and is none stays in the text; if the answer is held to calls
    `only`, it is the beginning of one that was cut, and no text."""

    def __init__(self, most: int, *, only: bool = False) -> None:
        self._left = most
        self._only = only
        self._heard = False
        self._held = ""
        self._gap = ""  # white space before the call
        self._inside = False
        self._scanned = 0  # characters of a call that have been looked at
        self._quoted = False  # whether they end inside a string

    def push(self, text: str) -> Heard:
        """Add text."""
        self._held += text
        return self._sorted(list(self._pieces()))

    def flush(self) -> Heard:
        """What is held back; no more text comes."""
        pieces: list[str | CalledTool] = []
        while self._inside:
            pieces.append(self._unclosed())
            pieces += self._pieces()
        rest, self._held = self._held, ""
        heard = self._sorted(pieces)
        if (self._heard and not rest.strip()) or (self._only and OPEN.startswith(rest.strip())):
            rest = ""
        return Heard(heard.text + rest, heard.calls)

    def _unclosed(self) -> str | CalledTool:
        """The call that has no end, or the text up to the first mark that may have been one."""
        body, self._held = self._held, ""
        self._inside = False
        if call := _read(body):
            return call
        before, found, self._held = body.partition(CLOSE)
        return "" if self._only else f"{self._gap}{OPEN}{before}{found}"

    def _pieces(self) -> Iterator[str | CalledTool]:
        """What is certain, in order."""
        while True:
            place = self._closing() if self._inside else self._held.find(OPEN)
            if place < 0:
                break
            before = self._held[:place]
            self._held = self._held[place + len(CLOSE if self._inside else OPEN) :]
            if self._inside:
                yield _read(before) or f"{self._gap}{OPEN}{before}{CLOSE}"
            else:
                yield before.rstrip()
                self._gap = before[len(before.rstrip()) :]
                self._scanned, self._quoted = 0, False
            self._inside = not self._inside
        if not self._inside:
            before = self._held
            sure = before[: len(before) - overlap(before, OPEN)].rstrip()
            self._held = before[len(sure) :]
            yield sure

    def _closing(self) -> int:
        """Where the call ends: at the first closing mark, in JSON at the first outside a string; -1
        if that has not come."""
        if not self._held.lstrip().startswith("{"):
            return self._held.find(CLOSE)
        for found in _MARKS.finditer(self._held, self._scanned):
            if found.group() == '"':
                self._quoted = not self._quoted
            elif found.group() == CLOSE and not self._quoted:
                return found.start()
            self._scanned = found.end()
        # What may be the beginning of a mark is looked at again.
        self._scanned = max(self._scanned, len(self._held) - len(CLOSE))
        return -1

    def _sorted(self, pieces: list[str | CalledTool]) -> Heard:
        calls = [piece for piece in pieces if isinstance(piece, CalledTool)][: self._left]
        self._left -= len(calls)
        self._heard |= bool(calls)
        return Heard("".join(piece for piece in pieces if isinstance(piece, str)), tuple(calls))


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


_CALL = msgspec.json.Decoder(_Call)


def _read(body: str) -> CalledTool | None:
    """The call in the text between the marks. Arguments stay as the model wrote them; some write
    them as a string of JSON, which is what clients get anyway."""
    try:
        call = _CALL.decode(body)
        arguments = bytes(call.arguments).decode()
        if arguments.startswith('"'):
            arguments = msgspec.json.decode(arguments, type=str)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return CalledTool(f"call_{uuid.uuid4().hex[:24]}", CalledFunction(call.name, arguments))
