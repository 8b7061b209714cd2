"""What a client may take: time for its line, bytes for what frames a request."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import RequestError

MAX_HEAD = 1 << 16  # bytes of request line and headers
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


def framing_fits(size: int, body_size: int) -> bool:
    """Whether a request of `size` bytes with so large a body is no flood of headers, trailers and
    chunk extensions: no other limit counts them. Chunks of one byte are six bytes."""
    # Of a body in chunks each byte may bring five more: size in hex, line ends.
    return size - body_size <= MAX_HEAD + 8 * body_size
