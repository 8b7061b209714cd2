"""A request's bytes into path, headers and body."""

from __future__ import annotations

from typing import Any

import httptools

from protocol.errors import InvalidRequest, PayloadTooLarge

_MAX_HEAD = 1 << 16


class RequestReader:
    """Fed until `complete`; `raw` holds all bytes fed, if wanted. `admitted` is its owner's.

    The parser sees the head, and bodies in chunks; others are taken as they come.
    """

    def __init__(self, max_body_bytes: int, *, keep_raw: bool) -> None:
        self._limit = max_body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._pieces: list[bytes] = []
        self._url = b""
        self._head_size = self._size = 0
        self._announced = self._missing = 0
        self.raw: list[bytes] | None = [] if keep_raw else None
        self.headers: dict[bytes, bytes] = {}
        self.headers_complete: bool = False
        self.complete: bool = False
        self.admitted = self.turned_away = False
        self.keep_alive = self.http_1_0 = False
        self.body = b""

    def feed(self, data: bytes) -> None:
        """Raises `InvalidRequest` for what is not HTTP, `PayloadTooLarge` as soon as the body is,
        or is announced to be, larger than allowed."""
        if self.raw is not None:
            self.raw.append(data)
        if self._missing:
            self._take(data)
        else:
            self._parse(data)
        if max(self._size, self._announced) > self._limit and not self.turned_away:
            raise PayloadTooLarge(f"the request is larger than {self._limit} bytes")

    def _parse(self, data: bytes) -> None:
        end = 0 if self.headers_complete else data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._feed_parser(data)
        else:
            self._feed_parser(data[:end])
            if self._announced and not self.complete:
                self._missing = self._announced
            body = data[end:]
            if self._missing:
                self._take(body)
            elif body:
                self._feed_parser(body)
        if not self.headers_complete:
            self._head_size += len(data)
            if self._head_size > _MAX_HEAD:
                raise InvalidRequest("the request's headers are too large")

    def _feed_parser(self, data: bytes) -> None:
        if self._parser is None:
            self.keep_alive = False  # pipelined: its sender has to ask again
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise InvalidRequest("malformed HTTP request") from None
        self._let_go()

    def _let_go(self) -> None:
        """The parser refers to this reader: such a cycle would wait for the collector."""
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
        self.raw = None

    @property
    def overflowing(self) -> bool:
        """Whether the client sends so much more than allowed that it is better cut off."""
        return self._size > 2 * self._limit

    @property
    def path(self) -> str:
        return self._url.partition(b"?")[0].decode("latin-1")

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
        if not self.complete:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.headers_complete = True
            self.http_1_0 = self._parser.get_http_version() == "1.0"
            self.keep_alive = self._parser.should_keep_alive() and not self.http_1_0
            if b"transfer-encoding" not in self.headers:
                self._announced = int(self.headers.get(b"content-length", b"0"))

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._size += len(body)
        if not self.turned_away:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = True
            pieces = self._pieces
            self.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
