"""What is sent to a worker, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.upstream.http1 import EVENTS

Buffer = bytes | memoryview
Body = Sequence[Buffer]


def size_of(body: Body) -> int:
    """Bytes of a body that is sent buffer after buffer."""
    return sum(map(len, body))


class Answer(NamedTuple):
    """A worker's whole answer; of an event stream, `body` is what came up to the first event."""

    status: int
    content_type: bytes
    body: bytes
    retry_after: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith(EVENTS)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What the head of an answer says. `keep`: its connection serves another request."""

    content_type: bytes
    retry_after: bytes
    keep: bool


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Seconds to the answer (of a stream: to its first event), seconds between events, and the
    largest answer in bytes that is not a stream."""

    answer_s: float
    stall_s: float
    max_bytes: int
