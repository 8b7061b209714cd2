"""HTTP/1.1 heads as bytes: those that are written, and those that are known.

On a kept connection, and from one worker, heads differ in little but `content-length`: parsing one
costs two microseconds, a third of what can be saved of an answer's own. What is known is what the
parser said of the very same bytes, the length's digits apart: nothing else is ever taken.
"""

from __future__ import annotations

import http
import re
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

JSON = b"application/json"
EVENTS = b"text/event-stream"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}
_DIGITS = 15  # of a length; no body has more
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,%d})\r\n" % _DIGITS, re.IGNORECASE)
_LARGEST = 4096  # bytes of a head that may be known
_MANY = 16  # misses in a row

T = TypeVar("T")


def request_head(prefix: bytes, fields: bytes, length: int) -> bytes:
    """`prefix`: request line and the worker's own fields; `fields`: those of this request."""
    return b"%bcontent-length: %d\r\n%b\r\n" % (prefix, length, fields)


def header_lines(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Names and values as lines, each with its end."""
    return b"".join(b"%b: %b\r\n" % pair for pair in pairs)


def response_head(
    status: int,
    content_type: bytes,
    length: int | None,
    *,
    request_id: bytes,
    keep_alive: bool,
    chunked: bool = False,
    fields: bytes = b"",
) -> bytes:
    """`length` None: the body is chunked, or ends with the connection. `fields`: further
    lines, each with its end."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    parts = [line, b"content-type: ", content_type, b"\r\n"]
    if length is not None:
        parts.append(b"content-length: %d\r\n" % length)
    elif chunked:
        parts.append(b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n")
    else:
        parts.append(b"cache-control: no-cache\r\n")
    if request_id:
        parts += (b"x-request-id: ", request_id, b"\r\n")
    parts.append(fields)
    parts.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    return b"".join(parts)


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; `data` must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


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
        # Where the parser has read another length than the pattern, the head is not one to go by.
        if head is None or head.length != length:
            return
        self._misses += 1
        hopeless = self._misses > _MANY and self._misses % _MANY
        if not hopeless and head.learnable:
            if len(self._known) >= self._most:
                # Which will come again is not known, and to learn one takes a single parse.
                self._known.clear()
            self._known[head.rest] = found
