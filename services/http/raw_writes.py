"""Bytes that are written to a connection beside uvicorn: errors where there is no request, an
answer's head and body as one; and how long a client may take to take them in."""

from __future__ import annotations

import asyncio
import http
import secrets

import msgspec

from protocol.errors import TriptychError
from services.http.client_bounds import Pace


def http_response(error: TriptychError) -> bytes:
    """It closes its connection."""
    body = msgspec.json.encode(error.to_openai())
    status = http.HTTPStatus(error.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nx-request-id: {secrets.token_hex(16)}\r\n"
        f"connection: close\r\n\r\n"
    )
    return head.encode() + body


_SMALL = 1 << 14  # copied rather than sent from two places


class JoinedWrites:
    """What uvicorn writes one answer to. What comes first is held until the next write, at most
    until the loop's next turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._begun = False
        self._held = b""

    def write(self, data: bytes) -> None:
        if not self._begun:
            self._begun, self._held = True, data
            # A stream's first event may be seconds away: its head must not wait for it.
            self._loop.call_soon(self._flush)
        elif self._held:
            head, self._held = self._held, b""
            # A copy of 16 KiB costs less than a second system call.
            if len(data) < _SMALL:
                self._transport.write(head + data)
            else:
                self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            head, self._held = self._held, b""
            self._transport.write(head)


class TakingTimer:
    """Cuts off a client that does not take in what has been written to it."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, pace: Pace) -> None:
        """Anew, for what waits in the transport's buffer."""
        self.stop()
        limit_s = pace.allowed_s(transport.get_write_buffer_size())
        # `abort`, for `close` would wait for the very bytes that are not taken.
        self._timer = asyncio.get_running_loop().call_later(limit_s, transport.abort)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
