"""Tool calls in a text that arrives piece by piece, in the form of Hermes, Qwen2.5 and Qwen3:

<tool_call>
{"name": "weather", "arguments": {"city": "Bern"}}
</tool_call>
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from protocol.openai_answers import CalledFunction, CalledTool
from services.frontend.stopping import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Heard:
    """`text` is for the client to read, `calls` are for it to make."""

    text: str
    calls: tuple[CalledTool, ...] = ()


class ToolCalls:
    """Takes calls out of a text, and the white space before them; `most` of them, others are
    dropped. A call is told once it is complete, which the first closing mark makes it. What looks
    like one and is none stays in the text."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._heard = False
        self._held = ""
        self._gap = ""  # white space before the call
        self._inside = False

    def push(self, text: str) -> Heard:
        """Add text."""
        self._held += text
        return self._sorted(list(self._pieces()))

    def flush(self) -> Heard:
        """What is held back; no more text comes."""
        body, self._held = self._held, ""
        if not self._inside:
            return Heard(body if body.strip() or not self._heard else "")
        self._inside = False
        return self._sorted([_read(body) or self._gap + OPEN + body])

    def _pieces(self) -> Iterator[str | CalledTool]:
        """What is certain, in order."""
        while True:
            before, found, after = self._held.partition(CLOSE if self._inside else OPEN)
            if not found:
                break
            self._held = after
            if self._inside:
                yield _read(before) or f"{self._gap}{OPEN}{before}{CLOSE}"
            else:
                yield before.rstrip()
                self._gap = before[len(before.rstrip()) :]
            self._inside = not self._inside
        if not self._inside:
            sure = before[: len(before) - overlap(before, OPEN)].rstrip()
            self._held = before[len(sure) :]
            yield sure

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
