"""ZMQ sockets read on the event loop, without holding it up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import zmq

logger = logging.getLogger(__name__)
_TURN_S = 0.001  # a flood of events delays placements and heartbeats by no more


class ReadRounds:
    """Reads the sockets that have messages, one message of each after the other. All of them
    together get so much time in a turn of the loop, and at least one message is read."""

    def __init__(self) -> None:
        self._ready: dict[SocketReader, None] = {}
        self._next: asyncio.Handle | None = None

    def add(self, reader: SocketReader) -> None:
        """It may have messages."""
        self._ready[reader] = None
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._take)

    def discard(self, reader: SocketReader) -> None:
        self._ready.pop(reader, None)

    def _take(self) -> None:
        self._next = None
        end = time.monotonic() + _TURN_S
        try:
            while self._ready:
                reader = next(iter(self._ready))
                del self._ready[reader]
                if reader.read():
                    self._ready[reader] = None
                if time.monotonic() >= end:
                    break
        finally:
            if self._ready:
                self._next = asyncio.get_running_loop().call_soon(self._take)


class SocketReader:
    """Hands every message of a socket to `take`, which must not raise. Owns the socket.

    ZMQ's descriptor tells of edges: once it has, the socket must be read until it is empty.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None], rounds: ReadRounds
    ) -> None:
        self._socket = socket
        self._take = take
        self._rounds = rounds
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.fileno(), rounds.add, self)
        rounds.add(self)  # what came before the descriptor was watched is no edge

    def read(self) -> bool:
        """One message; False if there is none."""
        # `take` may have closed it in the round that puts it back in line.
        if self._socket.closed:
            return False
        try:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            logger.exception("an event socket cannot be read")
            return False
        self._take(frames)
        return True

    def close(self) -> None:
        """Idempotent."""
        self._rounds.discard(self)
        if not self._socket.closed:
            # Before the close: the number may be another descriptor's right after it.
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close(0)
