"""Large data URLs of a JSON body, kept aside: never decoded, never encoded, never copied.

The body is parsed with a short name in the place of each; a part that is encoded again gets slices
of the client's own bytes where the names stand.
"""

from __future__ import annotations

import re
import secrets

from protocol.json_size import backslashes
from proxy.upstream.answer import Body, Buffer

_URL = b'"data:'
_LONG = 4096  # bytes; to parse a shorter one costs less
_MOST = 1 << 16  # that are looked at, long ones or not; behind them all are parsed
STAND_IN = "triptych-media:"  # what a large data URL begins with in `small`
_BACKSLASH = b"\\"


class DataUrls:
    """`small` is the body with names for its large data URLs. Names cannot be guessed, so nothing
    that a client writes is taken for one."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._spans: list[tuple[int, int]] = []
        self._name = b""
        self.small = body
        if len(body) > _LONG:
            self._cut(body)

    def fill(self, data: bytes) -> Body:
        """`data` with slices for names, as buffers to be sent one after the other."""
        if not self._spans:
            return (data,)
        body = memoryview(self._body)
        parts = re.split(self._name + rb"(\d+):", data)
        filled: list[Buffer] = [parts[0]]
        for number, text in zip(parts[1::2], parts[2::2], strict=True):
            start, end = self._spans[int(number)]
            filled += (body[start:end], text)
        return filled

    def _cut(self, body: bytes) -> None:
        pieces: list[bytes] = []
        done = 0
        name = STAND_IN.encode() + secrets.token_hex(16).encode() + b":"
        start = body.find(_URL) + 1
        for _ in range(_MOST):
            end = body.find(b'"', start) if start else -1
            if end < 0:
                break
            # The parser would undo an escape; a slice of the body does not.
            plain = body.find(_BACKSLASH, start, end) < 0
            if plain and end - start > _LONG and not _escaped(body, start - 1):
                pieces += (body[done:start], b"%b%d:" % (name, len(self._spans)))
                self._spans.append((start, end))
                done = end
            start = body.find(_URL, end) + 1
        if self._spans:
            self._name = name
            self.small = b"".join((*pieces, body[done:]))


def _escaped(body: bytes, quote: int) -> bool:
    """Whether the quote at this place is inside a string."""
    return backslashes(body, 0, quote) % 2 == 1
