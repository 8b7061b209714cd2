"""What is sent to a worker, and what it answers: bytes into status, some header fields, body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httptools

from proxy.upstream.http1 import EVENTS, KnownHeads
from services.http.client_bounds import Framing

Buffer = bytes | memoryview
Body = Sequence[Buffer]
_FRAMING = (b"content-length", b"transfer-encoding")  # each says where the body ends


def size_of(body: Body) -> int:
    """Bytes of a body that is sent buffer after buffer."""
    return sum(map(len, body))


class Answer(NamedTuple):
    """A worker's whole answer; of an event stream, `body` is what came up to the first event."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith(EVENTS)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What the head of an answer says. `keep`: its connection serves another request."""

    content_type: bytes
    retry_after: bytes
    keep: bool


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Seconds to the answer (of a stream: to its first event), seconds between events, and the
    largest answer in bytes that is not a stream."""

    answer_s: float
    stall_s: float
    max_bytes: int


class NotHttp(Exception):
    """A worker has sent something else than an answer; the text goes behind its URL."""


class AnswerParser:
    """Fed until `complete`. `pieces` are of the body, and its user's to take; `size` is of all of
    it. `framed`: the answer says where it ends; `keep`: its connection serves another request;
    `is_stream`: it is one of events."""

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._framing, self._fed = Framing(), 0
        self.status = self.size = 0
        self.content_type = self.retry_after = b""
        self.framed = self.complete = self.keep = self.is_stream = False
        self.pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Raises `NotHttp`."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise NotHttp("answered with something that is not HTTP") from None
        # After every piece: a 1xx, or trailers, are headers too.
        self._fed += len(data)
        if not self._framing.fits(self._fed, self.size):
            raise NotHttp("sent headers without an end")

    def let_go(self) -> None:
        """No more is fed."""
        # The parser refers to this object: such a cycle would wait for the collector.
        self._parser = None

    def answer(self, body: bytes) -> Answer:
        return Answer(self.status, self.content_type, body, self.retry_after)

    def learn(self, data: bytes, heads: KnownHeads[AnswerHead]) -> None:
        """Have the head of `data` known, if this was a whole and usual answer that came at once."""
        if self.status == 200 and self.complete and self.framed and not self.is_stream:
            heads.learn(data, self.size, AnswerHead(self.content_type, self.retry_after, self.keep))

    # What httptools reports.

    def on_message_begin(self) -> None:
        if self.complete:
            # httptools makes an error of its own of it, which `feed` reports.
            raise ValueError("bytes after the end of the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            self.content_type = value.lower()
        elif name in _FRAMING:
            self.framed = True
        elif name == b"retry-after":
            self.retry_after = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        # Of events only with 200: an error is read whole, with any content type.
        self.is_stream = self.status == 200 and self.content_type.startswith(EVENTS)

    def on_body(self, body: bytes) -> None:
        self.size += len(body)
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        # A 1xx is not the answer yet: that follows as another message.
        self.complete = self.status >= 200
        # A body that nothing frames ends with its connection, which serves no other request then.
        self.keep = self.framed and self._parser.should_keep_alive()
