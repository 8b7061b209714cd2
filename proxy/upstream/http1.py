"""HTTP/1.1 heads as bytes."""

from __future__ import annotations

import http
from collections.abc import Iterable

JSON = b"application/json"
EVENTS = b"text/event-stream"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in http.HTTPStatus
}


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
