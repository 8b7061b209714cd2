"""The messages in which cache events travel, as vLLM sends them.

A worker binds a ZMQ PUB socket for each `EventSource` and sends three frames, `[topic,
sequence number (8 bytes, big-endian), payload]`. A ROUTER socket beside it replays: a request
names the first sequence number wanted, the answers are `[topic, sequence number, payload]`, one
message each, and the last has sequence number -1 and no payload. We also ask for `SNAPSHOT`: the
whole state, in batches under the newest sequence number, the first of which begins with a
`...Cleared` event; a publisher that does not know the question, as vLLM's, or that has said nothing
yet answers with the end mark alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import InvalidRequest

SNAPSHOT = -2
_END = -1
_SEQ_BYTES = 8


def event_frames(topic: str, sequence: int, payload: bytes) -> list[bytes]:
    """One published message, or one answer of a replay."""
    return [topic.encode(), sequence.to_bytes(_SEQ_BYTES, "big", signed=True), payload]


def end_frames(topic: str = "") -> list[bytes]:
    """The last answer of a replay."""
    return event_frames(topic, _END, b"")


def parse_frames(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    """(sequence number, payload) of a message, None for a replay's end.

    Replays of some publishers leave the topic out, and REQ-style sockets put an empty frame before
    it: only the last two frames count. Raises `InvalidRequest` for anything else.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        raise InvalidRequest("an event message must be [topic, 8-byte sequence number, payload]")
    sequence = int.from_bytes(frames[-2], "big", signed=True)
    if sequence == _END:
        return None
    if sequence < 0:
        raise InvalidRequest(f"the sequence number {sequence} is negative")
    return sequence, frames[-1]


def replay_request(start: int) -> list[bytes]:
    """Frames that a DEALER socket sends: everything from `start` on, or `SNAPSHOT`.

    A REQ socket, which adds the empty frame itself, could read only the first answer.
    """
    return [b"", start.to_bytes(_SEQ_BYTES, "big", signed=True)]


def parse_replay_request(frames: Sequence[bytes]) -> tuple[bytes, int]:
    """(client's address, first sequence number or `SNAPSHOT`) of what a ROUTER socket received.

    Answer with `[address, b"", *event_frames(...)]`. Raises `InvalidRequest` if malformed.
    """
    if len(frames) < 2 or len(frames[-1]) != _SEQ_BYTES:
        raise InvalidRequest("a replay request must be an 8-byte sequence number")
    start = int.from_bytes(frames[-1], "big", signed=True)
    if start < SNAPSHOT or start == _END:
        raise InvalidRequest(f"a replay cannot start at sequence number {start}")
    return frames[0], start
