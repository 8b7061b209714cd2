"""The side channel between engines: one ROUTER per engine, one DEALER per peer.

It carries handshakes, offers and acknowledgements, never tensors. Both ends are polled from the
engine's step loop. Whatever is not one of our messages, or of another version, is refused, counted
and logged once; it never raises.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from connectors.messages import PROTOCOL_VERSION, FromConsumer, FromProducer
from protocol.errors import ConfigError

logger = logging.getLogger(__name__)
Address = tuple[str, int]
Sender = Callable[[FromProducer], None]
_HIGH_WATER = 10_000


class SideServer:
    """The producer's end. Handlers get a message and a way to answer, which stays good for later
    messages to the same consumer."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.refused = 0
        self._handlers: dict[type, Callable[[Any, Sender], None]] = {}
        self._decoder: msgspec.msgpack.Decoder[FromConsumer] = msgspec.msgpack.Decoder(FromConsumer)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigError(f"cannot bind the side channel to {host}:{port}: {error}") from None
        endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])

    @property
    def socket(self) -> zmq.Socket[bytes]:
        return self._socket

    def on(self, kind: type, handler: Callable[[Any, Sender], None]) -> None:
        """`handler` gets every message of a kind."""
        self._handlers[kind] = handler

    def poll(self) -> None:
        for frames in _receive(self._socket):
            self._serve(frames)

    def _serve(self, frames: list[bytes]) -> None:
        identity, data = frames[0], frames[-1]
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            return self._refuse(str(error))
        if message.version != PROTOCOL_VERSION:
            return self._refuse(f"protocol version {message.version}, ours is {PROTOCOL_VERSION}")
        handler = self._handlers.get(type(message))
        if handler is None:
            return self._refuse(f"{type(message).__name__} is not served here")
        return handler(message, lambda answer: self._send(identity, answer))

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        if self.refused == 1:
            logger.warning("side channel: refused a message: %s", reason)

    def _send(self, identity: bytes, message: FromProducer) -> None:
        try:
            self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("side channel: an answer is lost: %s", error)

    def close(self) -> None:
        self._socket.close()


@dataclass
class _Connection:
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    heard: float = field(default_factory=time.monotonic)
    broken: bool = False


class SideClient:
    """The consumer's end: a connection per producer, made when first needed."""

    def __init__(self) -> None:
        self.refused = 0
        self._handlers: dict[type, Callable[[Address, Any], None]] = {}
        self._decoder: msgspec.msgpack.Decoder[FromProducer] = msgspec.msgpack.Decoder(FromProducer)
        self._connections: dict[Address, _Connection] = {}

    def on(self, kind: type, handler: Callable[[Address, Any], None]) -> None:
        self._handlers[kind] = handler

    def send(self, peer: Address, message: FromConsumer) -> bool:
        """False if the message cannot be queued: the peer has not been reading for long."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _connect(peer)
        try:
            connection.socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def poll(self) -> None:
        for peer, connection in list(self._connections.items()):
            for frames in _receive(connection.socket):
                connection.heard = time.monotonic()
                self._dispatch(peer, frames[-1])
            for frames in _receive(connection.monitor):
                connection.broken = _event(frames) != zmq.EVENT_CONNECTED

    def _dispatch(self, peer: Address, data: bytes) -> None:
        try:
            message = self._decoder.decode(data)
        except msgspec.DecodeError as error:
            self.refused += 1
            if self.refused == 1:
                logger.warning("side channel: refused an answer of %s:%s: %s", *peer, error)
            return
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(peer, message)

    @property
    def peers(self) -> list[Address]:
        """Whom there is a connection to."""
        return list(self._connections)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [connection.socket for connection in self._connections.values()]

    def broken(self, peer: Address) -> bool:
        """True while there is no connection to a peer: its process has ended, or its host."""
        connection = self._connections.get(peer)
        return connection is not None and connection.broken

    def silent_s(self, peer: Address) -> float:
        """Seconds since the peer last said anything."""
        connection = self._connections.get(peer)
        return 0.0 if connection is None else time.monotonic() - connection.heard

    def forget(self, peer: Address) -> None:
        """Close the connection to a peer; the next message makes a new one."""
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.socket.disable_monitor()
            connection.socket.close()

    def close(self) -> None:
        for peer in list(self._connections):
            self.forget(peer)


def _connect(peer: Address) -> _Connection:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
    events = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
    monitor = socket.get_monitor_socket(events)
    socket.connect(f"tcp://{peer[0]}:{peer[1]}")
    return _Connection(socket, monitor)


def _event(frames: list[bytes]) -> int:
    """The event of a monitor message (its first two bytes, native order)."""
    return int.from_bytes(frames[0][:2], sys.byteorder)


def _receive(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    while True:
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
