"""Cutting a stream of server-sent events between events, never inside one, and what they say."""

from __future__ import annotations

import re

MAX_EVENT = 1 << 24  # bytes
MAX_COMMENTS = 1 << 16  # bytes before the first event
END_MARK = b"[DONE]"
_BETWEEN = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)")
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_SEAM = 3  # bytes of an end that may have come with the piece before
# The standard leaves the space out at will, and takes three kinds of line ends.
_END_MARKS = (b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n")


class EventTooLong(Exception):
    """An event of more than `MAX_EVENT` bytes without an end."""


class EventCutter:
    """Gives out the bytes it is fed, but only up to the end of the last whole event."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.ended = False

    @property
    def inside(self) -> bool:
        """Whether the end of an event is missing."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Whole events, maybe none; nothing after the end mark. Raises `EventTooLong`."""
        if self.ended:
            return b""
        if self._held:
            # What is held is not looked through again: an end may have begun in its last bytes.
            if not _end_of_events(bytes(self._held[-_SEAM:]) + data):
                self._hold(data)
                return b""
            data = bytes(self._held) + data
            self._held.clear()
        if not data.endswith(_EVENT_ENDS):
            cut = _end_of_events(data)
            self._hold(data[cut:])
            data = data[:cut]
        # No text of an answer looks like this: in a JSON string a line end is an escape.
        self.ended = data.endswith(_END_MARKS)
        return data

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > MAX_EVENT:
            raise EventTooLong


def _end_of_events(data: bytes) -> int:
    """Bytes up to the end of the last whole event, 0 if none ends here."""
    plain, long = data.rfind(b"\n\n"), data.rfind(b"\r\n\r\n")
    return max(plain + 2 if plain >= 0 else 0, long + 4 if long >= 0 else 0)


def events_of(data: bytes) -> list[bytes]:
    """Whole events one by one, each with its end."""
    if b"\r" in data:
        return [event for event in _BETWEEN.split(data) if event]
    # Most pieces are one event: they are not cut, and not put together again.
    if data.find(b"\n\n") == len(data) - 2:
        return [data]
    return [event + b"\n\n" for event in data.split(b"\n\n")[:-1]]


def data_of(event: bytes) -> bytes:
    """What an event says; nothing if it is a comment."""
    body = event.strip()
    if body.startswith(b"data:") and b"\n" not in body:
        return body[5:].strip()
    lines = (line[5:] for line in body.splitlines() if line.startswith(b"data:"))
    return b"\n".join(lines).strip()
