"""A text that arrives piece by piece, for readers written as if all of it were there.

A reader is a generator: it yields where it needs more text. What it decides depends on the text
alone, never on how that was cut into pieces, so a streamed answer and a whole one read the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import msgspec

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
Sink = Callable[[str], None]

_BLANK = re.compile(r"\s*")
_WORD = re.compile(r"[^\s\"'\\<>{}\[\](),;`]*")
MAX_WORD = 256
# Outside strings JSON has nothing else than these: a mark that cuts a value short ends it.
_PLAIN = re.compile(r"[^\"{}\[\],\\<`|\s]*")
_QUOTED = re.compile(r"[^\"\\]*")


class Source:
    """`add` text, then let the reader go on; `end` once no more comes."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # characters of `_text` that have been read
        self._ended = False

    def add(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        self._ended = True

    def start(self) -> None:
        """Forget what has been read; `taken` counts from here."""
        self._text = self._text[self._at :]
        self._at = 0

    @property
    def taken(self) -> str:
        """What has been read since `start`."""
        return self._text[: self._at]

    def back(self) -> None:
        """Read again from where `start` was called."""
        self._at = 0

    def more(self) -> Steps[bool]:
        """Wait for text that has not been read; False if there is none."""
        while self._at >= len(self._text) and not self._ended:
            yield
        return self._at < len(self._text)

    def pass_to(self, sink: Sink, marks: Sequence[str]) -> Steps[str]:
        """Hand text to `sink` up to the first of `marks`, which is read too; "" at the end."""
        while True:
            found = self._first(marks, self._at)
            stop = found[0] if found else self._sure(marks)
            if stop > self._at:
                sink(self._text[self._at : stop])
                self._at = stop
            # Handed on and forgotten: a long answer is neither kept nor searched again.
            self.start()
            if found:
                self._at = len(found[1])
                return found[1]
            if self._ended and self._at >= len(self._text):
                return ""
            yield

    def until(self, marks: Sequence[str], most: int = 1 << 30) -> Steps[tuple[str, str]]:
        """The text before the first of `marks`, and the mark, both read; the mark is "" at the end,
        or where `most` characters have none."""
        start = looked = self._at
        longest = max(map(len, marks))
        while True:
            found = self._first(marks, looked)
            if found and found[0] - start <= most:
                self._at = found[0] + len(found[1])
                return self._text[start : found[0]], found[1]
            # Longer by a mark, which may begin among the `most` characters and end behind them.
            if self._ended or len(self._text) - start >= most + longest:
                self._at = min(len(self._text), start + most)
                return self._text[start : self._at], ""
            # Not searched again, but for an end in which a mark may begin.
            looked = max(looked, len(self._text) - longest + 1)
            yield

    def skip_call_end(self, close: str, opening: str) -> Steps[None]:
        """Read what is left of a call, up to its end, or to the beginning of the next one."""
        _, mark = yield from self.until([close, opening])
        if mark == opening:
            self._at -= len(mark)

    def _first(self, marks: Sequence[str], start: int) -> tuple[int, str] | None:
        """(offset, mark) of the first one. None of `marks` may hold another."""
        places = ((self._text.find(mark, start), mark) for mark in marks)
        return min((found for found in places if found[0] >= 0), default=None)

    def _sure(self, marks: Sequence[str]) -> int:
        """Where the text ends that cannot be the beginning of a mark."""
        if self._ended:
            return len(self._text)
        rest = self._text[self._at :]
        return len(self._text) - max((overlap(rest, mark) for mark in marks), default=0)

    def take(self, literal: str) -> Steps[bool]:
        """Read `literal` if it comes next."""
        while not self._ended and len(self._text) - self._at < len(literal):
            if not literal.startswith(self._text[self._at :]):
                return False
            yield
        if not self._text.startswith(literal, self._at):
            return False
        self._at += len(literal)
        return True

    def peek(self) -> Steps[str]:
        """The next character, "" at the end; it is not read."""
        found = yield from self.more()
        return self._text[self._at] if found else ""

    def blanks(self) -> Steps[None]:
        """Read white space."""
        while (yield from self.more()):
            self._at = _end(_BLANK, self._text, self._at)
            if self._at < len(self._text):
                return

    def word(self) -> Steps[str]:
        """A name: neither blanks nor quotes nor brackets in it; "" if there is none."""
        start = self._at
        while True:
            end = _end(_WORD, self._text, self._at)
            self._at = min(end, start + MAX_WORD)
            if self._ended or end < len(self._text) or end - start > MAX_WORD:
                return self._text[start : self._at]
            yield

    def quoted_word(self) -> Steps[str]:
        """A name between quotation marks; "" if there is none."""
        if not (yield from self.take('"')):
            return ""
        word = yield from self.word()
        closed = yield from self.take('"')
        return word if closed else ""

    def json_string(self) -> Steps[str | None]:
        """A JSON string, decoded; None if it is none or does not end."""
        parts: list[str] = []
        if not (yield from self.json(parts.append)):
            return None
        try:
            return msgspec.json.decode("".join(parts), type=str)
        except (msgspec.DecodeError, UnicodeError):
            return None

    def json(self, sink: Sink, *, keep: bool = True) -> Steps[bool]:
        """Hand one JSON value to `sink` as it stands; False where it cannot go on or does not end.

        Only strings and brackets are looked at: what a client makes of the rest is its affair.
        `keep`: `taken` and `back` are needed still; a long value is held in memory then.
        """
        depth, quoted = 0, False
        while True:
            if not keep:
                self.start()
            if not (yield from self.more()):
                return False
            start = self._at
            self._at = _end(_QUOTED if quoted else _PLAIN, self._text, start)
            if self._at > start:
                sink(self._text[start : self._at])
                continue
            char = self._text[start]
            if quoted and char == "\\":
                while len(self._text) < start + 2 and not self._ended:
                    yield
                self._at = min(start + 2, len(self._text))
            elif char == '"' or (not quoted and char in "{}[]"):
                if char in "}]" and depth == 0:
                    return True  # the end of a number or word inside something else
                quoted ^= char == '"'
                depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(char, 0)
                self._at += 1
            elif depth and (char == "," or char.isspace()):
                self._at += 1
            else:
                return char == "," or char.isspace()
            sink(self._text[start : self._at])
            if depth == 0 and not quoted and char in '"}]':
                return True


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where what `pattern` matches at `start` ends; it matches nothing too."""
    found = pattern.match(text, start)
    return found.end() if found else start


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
