"""What a client may take: time for its line, bytes for what frames a request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.errors import RequestError

MAX_HEAD = 1 << 16  # bytes of request line and headers
_AROUND = 4  # bytes of a header line beside name and value
TOO_MUCH = "the headers of the request are too large"


class TooSlow(RequestError):
    """408. As an instance's status: what a worker answers must not be taken for the client's."""

    code = "request_timeout"

    def __init__(self) -> None:
        super().__init__("the request did not arrive in time")
        self.status = 408


@dataclass(frozen=True)
class Pace:
    """What is asked of a client's line."""

    grace_s: float = 60.0  # seconds that any request may take
    bytes_per_s: float = 32 << 10  # on the whole, after that

    def allowed_s(self, size: int) -> float:
        """Seconds that so many bytes may take."""
        return self.grace_s + size / self.bytes_per_s


def head_fits(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a head is no larger than allowed: one that comes in a single piece, with all of its
    request, is looked at by nothing else."""
    lines = sum(len(name) + len(value) + _AROUND for name, value in headers)
    return len(target) + lines <= MAX_HEAD


class Framing:
    """Bounds what comes of a message's headers, trailers or chunk extensions with none of its body
    in between. The parser puts the pieces of a header together anew with each that comes: one
    without an end would take time that grows with its square."""

    __slots__ = ("_body_size", "_since")

    def __init__(self) -> None:
        self._body_size = self._since = 0

    def fits(self, size: int, body_size: int) -> bool:
        """Whether more may come of a message of which so many bytes have, so many of them body."""
        if body_size > self._body_size:
            self._body_size, self._since = body_size, size
        return size - self._since <= MAX_HEAD


class RequestFraming(Framing):
    """And all of it together: no other limit counts it. Chunks of one byte are six bytes."""

    __slots__ = ()

    def fits(self, size: int, body_size: int) -> bool:
        # Of a body in chunks each byte may bring five more: size in hex, line ends.
        floods = size - body_size > MAX_HEAD + 8 * body_size
        return super().fits(size, body_size) and not floods
