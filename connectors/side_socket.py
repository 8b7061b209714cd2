"""Sockets of the side channel: bounded in what they hold and take, and watched for a lost peer."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator

import zmq

from protocol.curve import Curve
from protocol.errors import TransferError

HIGH_WATER = 10_000
_BUDGET = 1000  # messages of one socket in one poll, so that a flood does not hold up the engine
_MAX_BYTES = 4 << 20  # of a message of ours
_MAX_FRAME = 16 << 20  # ZMQ ends the connection of a peer that sends more
_LINGER_MS = 1000  # the last word to a peer, such as that its KV was copied, still leaves
# A process that is stopped or cut off answers no ZMTP heartbeat; one that computes does, by ZMQ's
# own thread. So a connection ends long before silence would say anything.
_PING_MS = 1000
_PONG_MS = 4000
_CONNECT_MS = 4000
_MADE = zmq.EVENT_HANDSHAKE_SUCCEEDED
# ZMQ goes on trying an address where nothing listens: of these only CONNECT_RETRIED tells.
# Handshakes fail with servers that do not speak ZMQ.
_LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def open_socket(kind: int, linger_ms: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, linger_ms)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME)
    return socket


def receive(socket: zmq.Socket[bytes], most: int = _BUDGET) -> Iterator[list[bytes]]:
    """The frames of each message that is here, to a bound."""
    for _ in range(min(most, _BUDGET)):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return


def body(frames: list[bytes]) -> bytes:
    """What a message says. `TransferError` if it has not one frame, or is too long."""
    if len(frames) != 1 or len(frames[0]) > _MAX_BYTES:
        raise TransferError(f"a message has {len(frames)} frames and {sum(map(len, frames))} bytes")
    return frames[0]


class Connection:
    """To a producer. ZMQ makes it again by itself and says nothing of it, so its events are
    watched: a peer that was lost has forgotten what it was told before.

    `number` is drawn from `numbers`, anew at each loss of the connection.
    `computing` is when the peer last said that it computes a step, `step_s` for how long it did.
    """

    def __init__(
        self,
        host: str,
        port: int,
        numbers: Iterator[int],
        clock: Callable[[], float],
        curve: Curve | None = None,
    ) -> None:
        """By `clock` it is noted when the peer was `heard`. With `curve`, to a producer of the
        fleet alone. `zmq.ZMQError` or `UnicodeError` if `host` is no address."""
        self.socket = open_socket(zmq.DEALER, linger_ms=_LINGER_MS)
        if curve is not None:
            curve.connect(self.socket)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, _PING_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _PONG_MS)
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, _CONNECT_MS)
        self._clock = clock
        self.heard = clock()
        self.broken_since: float | None = None
        self.computing = -math.inf
        self.step_s = 0.0
        self._numbers = numbers
        self.number = next(numbers)
        # Before `connect`, so that no event is missed.
        self._monitor = self.socket.get_monitor_socket(_MADE | _LOST)
        try:
            self.socket.connect(f"tcp://{host}:{port}")
        except (zmq.ZMQError, UnicodeError):
            self.close()
            raise

    def receive(self) -> Iterator[list[bytes]]:
        for frames in receive(self.socket):
            self.heard = self._clock()
            yield frames

    def watch(self) -> None:
        """Take note of what has become of the connection."""
        for frames in receive(self._monitor):
            self._note(_event(frames))

    def _note(self, event: int) -> None:
        if event == _MADE:
            self.broken_since = None
            return
        # At the loss, not when the connection is back: what is sent in between is for the new one.
        self.number = next(self._numbers)
        # Each further attempt that fails is an event as well: the first one counts.
        if self.broken_since is None:
            self.broken_since = time.monotonic()

    def close(self) -> None:
        self.socket.disable_monitor()
        self.socket.close()


def _event(frames: list[bytes]) -> int:
    """The event of a monitor message (its first two bytes, native order)."""
    return int.from_bytes(frames[0][:2], sys.byteorder)
