"""How much work a JSON text makes for its decoder, looked at before it is decoded.

Bytes do not tell. A picture of 60 MB in base64 is decoded in a moment; 60 MB of `[],[],` hold an
event loop for ten seconds and fill gigabytes. What costs is the number of objects, lists and texts,
and the length of all that stands outside of texts.
"""

from __future__ import annotations

from protocol.errors import PayloadTooLarge

MOST_VALUES = 1 << 19
"""Objects, lists and texts of one JSON text, the names of members among them."""
MOST_PLAIN = 1 << 23
"""Bytes of numbers and punctuation, blanks left out: of a million token ids."""
MOST_ESCAPED = 1 << 24
"""Bytes of texts with quotes in them, which take longest to look at."""
# A value takes two bytes at least: what is shorter cannot have too many.
_HARMLESS = 2 * MOST_VALUES
_WINDOW = 1 << 13  # bytes
_BLANKS = b" \t\r\n"


def check_json(data: bytes | bytearray | memoryview | str) -> None:
    """`PayloadTooLarge` if the JSON text would take long to decode. What is malformed is for the
    decoder to find."""
    if len(data) > _HARMLESS:
        _Size().count(data.encode(errors="replace") if isinstance(data, str) else bytes(data))


class _Size:
    """Counts window by window, and gives up at the first limit: looking takes a tenth of a second
    at most."""

    def __init__(self) -> None:
        self._quotes = self._brackets = self._plain = self._escaped = 0
        self._inside = False  # a text

    def count(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            if self._inside:
                place = _in_text(data, place)
            window = _whole(data, place)
            self._add(window)
            place += len(window)
            self._check()

    def _add(self, window: bytes) -> None:
        # What is escaped is neither a quote nor the beginning of another escape.
        if b"\\" in window and b'"' in window:
            self._escaped += len(window)
            window = window.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        parts = window.split(b'"')
        plain = b"".join(parts[self._inside :: 2])
        self._quotes += len(parts) - 1
        self._inside ^= len(parts) % 2 == 0
        if plain:
            self._brackets += plain.count(b"[") + plain.count(b"{")
            self._plain += len(plain.translate(None, _BLANKS))

    def _check(self) -> None:
        if self._quotes // 2 + self._brackets > MOST_VALUES:
            raise PayloadTooLarge(
                f"the request has more than {MOST_VALUES} objects, lists and texts in its JSON"
            )
        if self._plain > MOST_PLAIN:
            raise PayloadTooLarge(
                f"the request has more than {MOST_PLAIN} bytes of numbers in its JSON"
            )
        if self._escaped > MOST_ESCAPED:
            raise PayloadTooLarge(
                f"the request has more than {MOST_ESCAPED} bytes of texts with quotes in its JSON"
            )


def _in_text(data: bytes, place: int) -> int:
    """Where looking goes on: in a long text, as a picture, nothing has to be looked at before its
    next quote."""
    if data.find(b'"', place, place + _WINDOW) >= 0:
        return place
    quote = data.find(b'"', place)
    if quote < 0:
        return len(data)
    # A backslash that escapes the quote belongs to what is looked at.
    return quote - backslashes(data, place, quote) % 2


def backslashes(data: bytes, start: int, end: int) -> int:
    """How many stand at the end of this part of the data."""
    begin = end
    while begin > start:
        before = data[max(start, begin - _WINDOW) : begin]
        others = len(before.rstrip(b"\\"))
        begin -= len(before) - others
        if others:
            break
    return end - begin


def _whole(data: bytes, place: int) -> bytes:
    """The next window, with no escape cut in two."""
    window = data[place : place + _WINDOW]
    run = len(window) - len(window.rstrip(b"\\"))
    return window + data[place + _WINDOW : place + _WINDOW + 1] if run % 2 else window
