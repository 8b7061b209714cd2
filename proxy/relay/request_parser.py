"""A request's bytes into path, headers and body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httptools

from protocol.errors import InvalidRequest, PayloadTooLarge
from proxy.upstream.http1 import KnownHeads
from services.http.client_bounds import MAX_HEAD, TOO_MUCH, RequestFraming

_SMALL = 4096  # bytes of a piece that is gathered with others


@dataclass(frozen=True)
class RequestHead:
    """What the parser has said of a head with a length."""

    path: str
    headers: Mapping[bytes, bytes]
    keep_alive: bool
    http_1_0: bool


class RequestParser:
    """Fed until `complete`; `raw` holds all bytes fed, if wanted. `admitted` is its owner's.

    The parser sees the head, unless it is among the `heads` that were parsed before, and bodies in
    chunks; others are taken as they come.

    Class attributes are what every request begins with.
    """

    _parser: Any = None
    _framing: RequestFraming | None = None
    _path = ""
    _url = body = b""
    _fed = _size = _announced = _missing = 0
    headers_complete: bool = False
    complete: bool = False
    admitted = turned_away = keep_alive = http_1_0 = _upgrading = False

    def __init__(
        self,
        max_body_bytes: int,
        *,
        keep_raw: bool,
        heads: KnownHeads[RequestHead] | None = None,
    ) -> None:
        self._limit = max_body_bytes
        self._heads = heads
        self._pieces: list[bytes] = []
        self._crumbs = bytearray()
        self.raw: list[bytes] | None = [] if keep_raw else None
        self.headers: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> None:
        """Raises `InvalidRequest` for what is not HTTP, `PayloadTooLarge` as soon as the body is,
        or is announced to be, larger than allowed."""
        self._fed += len(data)
        if self.raw is not None:
            self.raw.append(data)
        if self._missing:
            self._take(data)
        else:
            self._parse(data)
        if max(self._size, self._announced) > self._limit and not self.turned_away:
            raise PayloadTooLarge(f"the request is larger than {self._limit} bytes")
        if not (self.complete or self._is_framed()):
            raise InvalidRequest(TOO_MUCH)

    def _is_framed(self) -> bool:
        if self._framing is None:
            self._framing = RequestFraming()
        return self._framing.fits(self._fed, self._size)

    def _parse(self, data: bytes) -> None:
        """The parser is handed a body of known length only where it comes with the head's end."""
        fresh = self._heads is not None and self._fed == len(data)
        known = self._heads.find(data) if fresh and self._heads is not None else None
        left = b""
        if known is not None and known[1]:
            self._recall(known[0], known[1])
            body = data[known[2] :]
            if len(body) == self._announced:
                self._size, self.body, self.complete = len(body), body, True
                return
        else:
            end = 0 if self.headers_complete else data.find(b"\r\n\r\n") + 4
            head, body = (data, b"") if end < 4 else (data[:end], data[end:])
            # A single piece may bring all of the request: nothing else would look at its head.
            if end >= 4 and self._fed - len(body) > MAX_HEAD:
                raise InvalidRequest(TOO_MUCH)
            left = self._feed_parser(head)
            if fresh:
                self._learn(data)
        if self._announced and not self.complete:
            self._missing = self._announced - self._size
        if self._missing:
            self._take(left + body)
        elif body:
            self._feed_parser(body)

    def _feed_parser(self, data: bytes) -> bytes:
        """What the parser leaves: an upgrade is declined, but it takes no body where it sees one
        asked for."""
        left = b""
        if self.complete:
            self.keep_alive = False  # pipelined: its sender has to ask again
            return left
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            left = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            raise InvalidRequest("malformed HTTP request") from None
        self._let_go()
        return left

    def _recall(self, known: RequestHead, length: int) -> None:
        """Take over what the parser has said of the same head before."""
        self._path, self._announced = known.path, length
        self.headers = {**known.headers, b"content-length": b"%d" % length}
        self.keep_alive, self.http_1_0 = known.keep_alive, known.http_1_0
        self.headers_complete = True

    def _learn(self, data: bytes) -> None:
        usual = self.headers_complete and not (self._upgrading or self.complete or self._size)
        if self._heads is not None and usual:
            known = RequestHead(self.path, self.headers.copy(), self.keep_alive, self.http_1_0)
            self._heads.learn(data, self._announced, known)

    def _let_go(self) -> None:
        # The parser refers to this reader: such a cycle would wait for the collector.
        if self.complete:
            self._parser = None

    def _take(self, data: bytes) -> None:
        """Of a body whose length is known."""
        if len(data) > self._missing:
            data = data[: self._missing]
            self.keep_alive = False  # as above
        self._missing -= len(data)
        self.on_body(data)
        if not self._missing:
            self.on_message_complete()
            self._let_go()

    def turn_away(self) -> None:
        """The request is answered already: its body is counted, not kept."""
        self.turned_away = True
        self._pieces.clear()
        self._crumbs.clear()
        self.raw = None

    @property
    def size(self) -> int:
        """Bytes of the body that have come."""
        return self._size

    @property
    def overflowing(self) -> bool:
        """Whether the client sends so much more than allowed that it is better cut off."""
        return self._size > 2 * self._limit or self._fed > 2 * self._limit + MAX_HEAD

    @property
    def path(self) -> str:
        return self._path or self._url.partition(b"?")[0].decode("latin-1")

    @property
    def expects_continue(self) -> bool:
        return self.headers.get(b"expect", b"").lower() == b"100-continue"

    # What the parser reports; nothing of a second, pipelined request.

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep_alive = False  # its sender has to ask again on a new connection

    def on_url(self, url: bytes) -> None:
        if not self.complete:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.headers_complete:  # else it is a trailer
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.headers_complete = True
            self.http_1_0 = self._parser.get_http_version() == "1.0"
            # An HTTP/1.0 client cannot be sent chunks: a stream ends with its connection.
            self.keep_alive = self._parser.should_keep_alive() and not self.http_1_0
            self._upgrading = self._parser.should_upgrade()
            if b"transfer-encoding" not in self.headers:
                self._announced = int(self.headers.get(b"content-length", b"0"))
            elif self._upgrading:
                raise InvalidRequest(
                    "a request to upgrade the connection must state the length of its body"
                )

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._size += len(body)
        if self.turned_away:
            return
        if self._pieces and len(body) < _SMALL:
            self._crumbs += body
            return
        if self._crumbs:
            self._sweep()
        self._pieces.append(body)

    def _sweep(self) -> None:
        """What came in crumbs as one piece."""
        # An object for each would take many times its size.
        self._pieces.append(bytes(self._crumbs))
        self._crumbs.clear()

    def on_message_complete(self) -> None:
        passed_over = self._upgrading and self._size < self._announced
        if not (self.complete or passed_over):
            self.complete = True
            pieces = self._pieces
            if self._crumbs:
                self._sweep()
            self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
