"""The consumer's end of the side channel: one DEALER per peer.

As the other end, it never raises for what a peer says.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from connectors.messages import Alive, FromConsumer, FromProducer
from connectors.meter import Refusals
from connectors.side_socket import Connection, body
from protocol.addresses import is_plain_host
from protocol.curve import Curve
from protocol.errors import TransferError

Address = tuple[str, int]
_BROKEN_S = 30.0  # how long a connection that is not there is tried again


class SideClient:
    """The consumer's end: a connection per producer, made when first needed."""

    def __init__(self, curve: Curve | None = None, most_pause_s: float = math.inf) -> None:
        """With `curve`, of producers of the fleet alone. `most_pause_s`: see `listened_s`."""
        self._curve = curve
        self._refusals = Refusals()
        self._numbers = itertools.count()
        self._handlers: dict[type, Callable[[Address, Any], None]] = {}
        self._decoder: msgspec.msgpack.Decoder[FromProducer] = msgspec.msgpack.Decoder(FromProducer)
        self._connections: dict[Address, Connection] = {}
        self._closed = False
        self._most_pause_s = most_pause_s
        self._listened_s = 0.0
        self._polled = time.monotonic()

    @property
    def refused(self) -> int:
        """Answers that made no sense."""
        return self._refusals.count

    def on(self, kind: type, handler: Callable[[Address, Any], None]) -> None:
        self._handlers[kind] = handler

    def send(self, peer: Address, message: FromConsumer) -> bool:
        """False if the message cannot be queued: the address is none, the peer has not been reading
        for long, or this end is closed."""
        if self._closed or not peer[0] or not 0 < peer[1] < 1 << 16:
            return False
        try:
            connection = self._connections.get(peer) or self._connect(peer)
            connection.socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except (zmq.ZMQError, ValueError):
            return False
        return True

    def _connect(self, peer: Address) -> Connection:
        # ZMQ would take the host of "a;b" for two.
        if not is_plain_host(peer[0]):
            raise ValueError(f"'{peer[0][:128]}' is no host")
        connection = self._connections[peer] = Connection(
            *peer, self._numbers, lambda: self.listened_s, self._curve
        )
        return connection

    @property
    def listened_s(self) -> float:
        """The clock by which peers are silent. The time between two polls counts for at most
        `most_pause_s`: while its own engine makes a long step this end neither asks nor listens,
        which is no fault of a peer. Some of it counts, so that one that is lost is noticed after
        some steps, however long they are."""
        return self._listened_s + min(time.monotonic() - self._polled, self._most_pause_s)

    def poll(self) -> None:
        self._listened_s, self._polled = self.listened_s, time.monotonic()
        for peer, connection in list(self._connections.items()):
            for frames in connection.receive():
                self._dispatch(peer, connection, frames)
            connection.watch()

    def _dispatch(self, peer: Address, connection: Connection, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(body(frames))
        except (msgspec.DecodeError, UnicodeError, TransferError) as error:
            return self._refusals.add("none of ours", f"{peer[0]}:{peer[1]}: {error}")
        if isinstance(message, Alive):
            connection.step_s = message.step_s
            # `Alive` with 0, after a step, leaves the time: timeouts count from there.
            if message.step_s:
                connection.computing = connection.heard
        handler = self._handlers.get(type(message))
        return None if handler is None else handler(peer, message)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [connection.socket for connection in self._connections.values()]

    def broken(self, peer: Address) -> bool:
        """True while there is no connection to a peer: its process has ended, or its host."""
        connection = self._connections.get(peer)
        return connection is not None and connection.broken_since is not None

    def connection_number(self, peer: Address) -> int | None:
        """A number that changes with every loss of the connection: what was said before it did is
        forgotten by the peer. None without a connection."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.number

    def gone(self) -> list[Address]:
        """Peers whose connection has been broken for more than `_BROKEN_S`."""
        end = time.monotonic() - _BROKEN_S
        return [
            peer
            for peer, connection in self._connections.items()
            if connection.broken_since is not None and connection.broken_since < end
        ]

    def silent_s(self, peer: Address) -> float:
        """Seconds of `listened_s` since the peer last said anything."""
        connection = self._connections.get(peer)
        return 0.0 if connection is None else self.listened_s - connection.heard

    def computing(self, peer: Address) -> tuple[float, float]:
        """When a peer last said that it computes a step (by `listened_s`, minus infinity if it
        never has), and for how many seconds by now, 0 if it has ended."""
        connection = self._connections.get(peer)
        if connection is None:
            return -math.inf, 0.0
        so_far_s = self.listened_s - connection.computing + connection.step_s
        return connection.computing, so_far_s if connection.step_s else 0.0

    def forget(self, peer: Address) -> None:
        """Close the connection to a peer; the next message makes a new one."""
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closed = True
        for peer in list(self._connections):
            self.forget(peer)
