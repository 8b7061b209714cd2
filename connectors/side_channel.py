"""The side channel between engines: one ROUTER per engine, one DEALER per peer.

It carries handshakes, offers and acknowledgements, never tensors. Both ends are polled from the
engine's step loop. Whatever is not one of our messages, or of another version, is refused, counted
and logged once; it never raises.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from connectors.messages import (
    PROTOCOL_VERSION,
    Alive,
    FromConsumer,
    FromProducer,
    Heartbeat,
    Hello,
    Refused,
)
from connectors.meter import Refusals
from connectors.side_socket import HIGH_WATER, Connection, body, open_socket, receive
from protocol.curve import Curve
from protocol.errors import ConfigError, TransferError

logger = logging.getLogger(__name__)
Address = tuple[str, int]
_MAX_INTRODUCED = 65_536  # consumers; those that were heard last are remembered
_BROKEN_S = 30.0  # how long a connection that is not there is tried again


@dataclass(frozen=True)
class Sender:
    """A way to answer one consumer; those of one connection are equal."""

    identity: bytes
    _send: Callable[[bytes, FromProducer], None] = field(compare=False, repr=False)

    def __call__(self, message: FromProducer) -> None:
        self._send(self.identity, message)


class SideServer:
    """The producer's end. Handlers get a message and a way to answer, which stays good for later
    messages to the same consumer."""

    def __init__(self, host: str, port: int, curve: Curve | None = None) -> None:
        """With `curve`, for consumers of the fleet alone."""
        self.host = host
        self._introduced: OrderedDict[bytes, set[str]] = OrderedDict()
        self._regions: dict[type, str] = {}
        self._refusals = Refusals()
        self._handlers: dict[type, Callable[[Any, Sender], None]] = {}
        self._decoder: msgspec.msgpack.Decoder[FromConsumer] = msgspec.msgpack.Decoder(FromConsumer)
        self._put_off: deque[list[bytes]] = deque()
        self._socket: zmq.Socket[bytes] = open_socket(zmq.ROUTER, linger_ms=0)
        if curve is not None:
            curve.serve(self._socket)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigError(f"the side channel cannot listen on {host}:{port}: {error}") from None
        endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._socket

    @property
    def refused(self) -> int:
        """Messages that made no sense."""
        return self._refusals.count

    def on(self, kind: type, handler: Callable[[Any, Sender], None]) -> None:
        """`handler` gets every message of a kind."""
        self._handlers[kind] = handler

    def reserve(self, kind: type, region: str) -> None:
        """Messages of a kind are for consumers that have been introduced for a region on the same
        connection; those of others are refused."""
        self._regions[kind] = region

    def introduce(self, consumer: Sender, region: str) -> None:
        """A consumer has proved to be a fitting peer for a region."""
        self._introduced.setdefault(consumer.identity, set()).add(region)
        self._introduced.move_to_end(consumer.identity)
        if len(self._introduced) > _MAX_INTRODUCED:
            self._introduced.popitem(last=False)

    def _knows(self, identity: bytes, region: str) -> bool:
        regions = self._introduced.get(identity, ())
        if regions:
            self._introduced.move_to_end(identity)
        return not region or region in regions

    def poll(self) -> None:
        while self._put_off:
            identity, *frames = self._put_off.popleft()
            self._serve(identity, frames)
        for frames in receive(self._socket):
            self._serve(frames[0], frames[1:])

    def say_computing(self, step_s: float) -> None:
        """Instead of `poll`, while a step computes for so long already: nothing is done for peers,
        but those that ask hear why. What they have said is served by the next `poll`."""
        for frames in receive(self._socket, HIGH_WATER - len(self._put_off)):
            self._put_off.append(frames)
            with contextlib.suppress(msgspec.DecodeError, UnicodeError, TransferError):
                if isinstance(self._decoder.decode(body(frames[1:])), Heartbeat):
                    self._send(frames[0], Alive(step_s))

    def _serve(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(body(frames))
        except (msgspec.DecodeError, UnicodeError, TransferError) as error:
            return self._refusals.add("none of ours", error)
        if message.version != PROTOCOL_VERSION:
            return self._refuse_version(identity, message)
        handler = self._handlers.get(type(message))
        if handler is None:
            return self._refusals.add("this instance does not serve that", type(message).__name__)
        if not self._knows(identity, self._regions.get(type(message), "")):
            return self._refusals.add("no Hello came before it", type(message).__name__)
        return handler(message, Sender(identity, self._send))

    def _refuse_version(self, identity: bytes, message: FromConsumer) -> None:
        reason = f"the peer speaks version {message.version}, ours is {PROTOCOL_VERSION}"
        self._refusals.add("another version", reason)
        if isinstance(message, Hello):
            self._send(identity, Refused(message.query, reason))

    def _send(self, identity: bytes, message: FromProducer) -> None:
        try:
            self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("the side channel lost an answer: %s", error)

    def close(self) -> None:
        self._socket.close()


class SideClient:
    """The consumer's end: a connection per producer, made when first needed."""

    def __init__(self, curve: Curve | None = None) -> None:
        """With `curve`, of producers of the fleet alone."""
        self._curve = curve
        self._refusals = Refusals()
        self._lives = itertools.count()
        self._handlers: dict[type, Callable[[Address, Any], None]] = {}
        self._decoder: msgspec.msgpack.Decoder[FromProducer] = msgspec.msgpack.Decoder(FromProducer)
        self._connections: dict[Address, Connection] = {}
        self._closed = False

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
        except (zmq.ZMQError, UnicodeError):
            return False
        return True

    def _connect(self, peer: Address) -> Connection:
        connection = self._connections[peer] = Connection(*peer, self._lives, self._curve)
        return connection

    def poll(self) -> None:
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

    def life(self, peer: Address) -> int | None:
        """A number that changes with every loss of the connection: what was said before it did is
        forgotten by the peer. None without a connection."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.life

    def gone(self) -> list[Address]:
        """Peers whose connections have been broken for so long that nobody needs them."""
        end = time.monotonic() - _BROKEN_S
        return [
            peer
            for peer, connection in self._connections.items()
            if connection.broken_since is not None and connection.broken_since < end
        ]

    def silent_s(self, peer: Address) -> float:
        """Seconds since the peer last said anything."""
        connection = self._connections.get(peer)
        return 0.0 if connection is None else time.monotonic() - connection.heard

    def computing(self, peer: Address) -> tuple[float, float]:
        """When a peer last said that it computes a step (`time.monotonic`, minus infinity if it
        never has), and for how many seconds by now, 0 if it has ended."""
        connection = self._connections.get(peer)
        if connection is None:
            return -math.inf, 0.0
        so_far_s = time.monotonic() - connection.computing + connection.step_s
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
