"""Heads of messages that came before, so that the same head is not parsed again.

On a kept connection, and from one worker, heads differ in little but `content-length`: parsing one
costs two microseconds, a third of what can be saved of an answer's own. What is known is what the
parser said of the very same bytes, the length's digits apart: nothing else is ever taken.
"""

from __future__ import annotations

import re
from typing import Generic, NamedTuple, TypeVar

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,15})\r\n", re.IGNORECASE)
_LARGEST = 4096
_MANY = 16  # misses in a row

T = TypeVar("T")


class MessageHead(NamedTuple):
    """A head with a length: `rest` is all of it but the length's digits, `end` where the body of
    `length` bytes begins."""

    rest: bytes
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
        return MessageHead(data[:start] + data[stop:end], int(found[1]), end + 4)

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

    def get(self, head: MessageHead) -> T | None:
        found = self._known.get(head.rest)
        if found is not None:
            self._misses = 0
        return found

    def learn(self, head: MessageHead, found: T) -> None:
        """`found`: what a parser has said of the same head."""
        self._misses += 1
        hopeless = self._misses > _MANY and self._misses % _MANY
        if not hopeless and head.learnable:
            if len(self._known) >= self._most:
                self._known.clear()
            self._known[head.rest] = found
