"""Heads of messages that came before, so that the same head is not parsed again.

On a kept connection, and from one worker, heads differ in little but `content-length`: parsing one
costs two microseconds, a third of what can be saved of an answer's own. What is known is what the
parser said of the very same bytes, the length's digits apart: nothing else is ever taken.
"""

from __future__ import annotations

import re
from typing import Generic, NamedTuple, TypeVar

_DIGITS = 15
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,%d})\r\n" % _DIGITS, re.IGNORECASE)
_LARGEST = 4096
_MANY = 16  # misses in a row

T = TypeVar("T")


class MessageHead(NamedTuple):
    """A head with a length: what stands `before` the length's digits and `after` them, empty line
    included; the body of `length` bytes begins at `end`."""

    before: bytes
    after: bytes
    length: int
    end: int

    @staticmethod
    def of(data: bytes) -> MessageHead | None:
        """The head that `data` begins with, None if it is not all there or says no length."""
        end = data.find(b"\r\n\r\n", 0, _LARGEST)
        found = _LENGTH.search(data, 0, end + 2) if end > 0 else None
        if found is None:
            return None
        start, stop = found.span(1)
        return MessageHead(data[:start], data[stop : end + 4], int(found[1]), end + 4)

    @property
    def rest(self) -> bytes:
        """All of it but the length's digits."""
        return self.before + self.after

    @property
    def learnable(self) -> bool:
        """Whether the length alone says where the message ends."""
        rest = self.rest.lower()
        return rest.count(b"content-length") == 1 and b"transfer-encoding" not in rest


class KnownHeads(Generic[T]):
    """What was found in heads, by their `rest`; the latest few, at most `most`. Where no head comes
    twice, as with a client that sends a trace's id, only one of many is learnt."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._misses = 0
        self._known: dict[bytes, T] = {}
        self._last: tuple[bytes, bytes, T] | None = None

    def find(self, data: bytes) -> tuple[T, int, int] | None:
        """(what was found in the head that `data` begins with, its body's length, where its body
        begins). Most heads are that of the message before: this is looked at first."""
        if self._last is not None:
            before, after, found = self._last
            start = len(before)
            if data.startswith(before):
                stop = data.find(b"\r", start, start + _DIGITS + 1)
                digits = data[start:stop]
                if stop > 0 and data.startswith(after, stop) and digits.isdigit():
                    self._misses = 0
                    return found, int(digits), stop + len(after)
        head = MessageHead.of(data) if self._known else None
        return None if head is None else self._find(head)

    def _find(self, head: MessageHead) -> tuple[T, int, int] | None:
        found = self._known.get(head.rest)
        if found is None:
            return None
        self._misses = 0
        self._last = (head.before, head.after, found)
        return found, head.length, head.end

    def learn(self, data: bytes, length: int, found: T) -> None:
        """`found`: what a parser has said of the head that `data` begins with; `length`: of its
        body, in bytes, by the same parser."""
        head = MessageHead.of(data)
        if head is None or head.length != length:
            return
        self._misses += 1
        hopeless = self._misses > _MANY and self._misses % _MANY
        if not hopeless and head.learnable:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[head.rest] = found
