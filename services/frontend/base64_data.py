"""Base64 of many megabytes, decoded beside an event loop that has to go on.

The decoder holds the interpreter's lock: 16 MB at once stop every other thread for 70 ms. In
slices, with a rest after each, a loop's turn waits for one slice at most.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Iterator
from urllib.parse import unquote

_SLICE = 1 << 18  # characters, a multiple of 4; decoding them takes less than a millisecond
_REST_S = 0.0002  # a rest of no time would seldom let another thread have the lock


def from_base64(text: str) -> bytes:
    """Strict; line breaks, blanks and percent escapes, which some clients write, are undone.
    `ValueError` if it is no base64. Rests if it is long: not for an event loop's own thread."""
    try:
        return _decoded(text)
    except ValueError:
        cleaned = "".join("".join(piece.split()) for piece in _slices(unquote(text)))
        return _decoded(cleaned + "=" * (-len(cleaned) % 4))


def _slices(text: str) -> Iterator[str]:
    for start in range(0, len(text), _SLICE):
        if start:
            time.sleep(_REST_S)
        yield text[start : start + _SLICE]


def _decoded(text: str) -> bytes:
    if len(text) <= _SLICE:
        return binascii.a2b_base64(text, strict_mode=True)
    data = bytearray()
    padded = False
    for piece in _slices(text):
        if padded:
            raise ValueError("data after the padding")
        data += binascii.a2b_base64(piece, strict_mode=True)
        padded = piece.endswith("=")
    return bytes(data)


def beginning(url: str) -> bytes:
    """The first bytes of a data: URL's content; none if it is not base64 as it should be, or short:
    what it is shows when it is decoded."""
    head, _, body = url[:1024].partition(",")
    if head[:5].lower() != "data:" or not head.lower().endswith(";base64") or len(body) < 64:
        return b""
    try:
        return binascii.a2b_base64(body[:64], strict_mode=True)
    except ValueError:
        return b""
