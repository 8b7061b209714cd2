"""One answer on its way to a client."""

from __future__ import annotations

import asyncio

import msgspec

from protocol.errors import TriptychError
from protocol.request_record import RequestRecord
from proxy.upstream.answer import Answer
from proxy.upstream.http1 import EVENTS, JSON, LAST_CHUNK, chunk, header_lines, response_head

_DONE = b"data: [DONE]\n\n"
# As vLLM writes it, once it has the first token: it waits for little. A role that is written in
# another way is shown at once.
_ROLE = b'"role":"assistant","content":""'
_TAIL = 1 << 16  # bytes at the end of an answer: its usage may stand before the prompt's token ids


class ClientResponse:
    """Either `whole`, or `begin`, any number of `forward` and `end`; `fail` fits both. `show` is
    the first or the second of these, `offer` the first unless it has to wait.

    Nothing is written once the client has left. `events` counts what a stream has had.
    `record` has what is known of the request.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        record: RequestRecord,
        *,
        keep_alive: bool,
        http_1_0: bool,
        extra: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """`extra`: header fields of any answer."""
        self._fields = header_lines(extra) if extra else b""
        self._transport = transport
        self.record = record
        self._request_id = record.request_id.encode("latin-1")
        self._chunked = not http_1_0
        self.keep_alive = keep_alive
        self.status = 0
        self.ended = False
        self.events = 0
        self.held = b""  # the role of a stream that has not begun

    @property
    def started(self) -> bool:
        return self.status != 0

    def whole(self, answer: Answer) -> None:
        """A worker's answer as it is."""
        fields, record = self._fields, self.record
        self.status, self.ended = answer.status, True
        if record.kept:
            fields += b"server-timing: %b\r\n" % record.server_timing()
            record.status, record.bytes_out = answer.status, len(answer.body)
            record.tail = (b"", answer.body[-_TAIL:])
        if answer.retry_after:
            fields += b"retry-after: %b\r\n" % answer.retry_after
        head = response_head(
            answer.status,
            answer.content_type or JSON,
            len(answer.body),
            request_id=self._request_id,
            keep_alive=self.keep_alive,
            fields=fields,
        )
        self._write(head + answer.body)

    def begin(self, first: bytes) -> None:
        """The head of a stream and its first events."""
        self.status = self.record.status = 200
        # Where nothing else can show a stream's end, the connection's end does.
        self.keep_alive = self.keep_alive and self._chunked
        fields = self._fields
        if self.record.kept:
            fields += b"server-timing: %b\r\n" % self.record.server_timing()
        head = response_head(
            200,
            EVENTS + b"; charset=utf-8",
            None,
            request_id=self._request_id,
            keep_alive=self.keep_alive,
            chunked=self._chunked,
            fields=fields,
        )
        self._write(head)
        self.forward(first)

    def offer(self, first: bytes) -> None:
        """The first events of a stream. A role alone waits for `show` of those that follow: as long
        as the client has had nothing, another worker may answer."""
        if _ROLE in first and first.count(b"\n\n") == 1:
            self.held = first
        else:
            self.begin(first)

    def show(self, events: bytes) -> None:
        """More of a stream, with its head if it has not begun."""
        if self.status:
            self.forward(events)
        else:
            self.begin(self.held + events)

    def forward(self, events: bytes) -> None:
        # By the line ends that vLLM and our workers write; a piece with others counts as one event.
        self.events += events.count(b"\n\n") or 1
        if self.record.kept:
            self.record.bytes_out += len(events)
            self.record.tail = (self.record.tail[1], events)
        self._write(chunk(events) if self._chunked else events)

    def end(self) -> None:
        self.ended = True
        if self._chunked:
            self._write(LAST_CHUNK)

    def fail(self, error: TriptychError) -> None:
        """An error answer, or, where the answer has begun, one error event and a clean end."""
        if self.ended:
            return
        self.record.outcome = error.code
        body = msgspec.json.encode(error.to_openai())
        if self.started:
            self.forward(b"data: " + body + b"\n\n" + _DONE)
            self.end()
            return
        wait = b""
        if error.retry_after_s is not None:
            wait = b"%d" % max(1, round(error.retry_after_s))
        self.whole(Answer(error.status, JSON, body, wait))

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)
