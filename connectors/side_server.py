"""The producer's end of the side channel: one ROUTER per engine.

It carries handshakes, offers and acknowledgements, never tensors. Both ends are polled from the
engine's step loop. A message that is not ours, or of another version, is refused, counted and
logged once; it never raises.
"""

from __future__ import annotations

import contextlib
import logging
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
from connectors.side_socket import HIGH_WATER, body, open_socket, receive
from protocol.curve import Curve
from protocol.errors import ConfigError, TransferError

logger = logging.getLogger(__name__)
_MAX_INTRODUCED = 65_536  # consumers; those that were heard last are remembered


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
        # Nothing lingers: consumers see the connection end, even with messages unsent.
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
        # A ROUTER socket assigns a new identity to each connection: a consumer that reconnects has
        # to send Hello again.
        self._introduced.setdefault(consumer.identity, set()).add(region)
        self._introduced.move_to_end(consumer.identity)
        if len(self._introduced) > _MAX_INTRODUCED:
            self._introduced.popitem(last=False)

    def _knows(self, identity: bytes, region: str) -> bool:
        regions = self._introduced.get(identity, ())
        if regions:
            self._introduced.move_to_end(identity)
        return not region or region in regions

    @property
    def waiting(self) -> bool:
        """Whether `poll` has messages that the socket does not show any more."""
        return bool(self._put_off)

    def poll(self) -> None:
        # First what came during the step: a consumer is served in the order in which it spoke.
        while self._put_off:
            identity, *frames = self._put_off.popleft()
            self._serve(identity, frames)
        for frames in receive(self._socket):
            self._serve(frames[0], frames[1:])

    def say_computing(self, step_s: float) -> None:
        """Instead of `poll`, while a step computes for so long already: nothing is done for peers,
        but those that ask hear why. What they have said is served by the next `poll`."""
        # All of it is taken, as a heartbeat may stand behind other messages; to a bound, as a step
        # may be long and `poll` comes after it.
        for frames in receive(self._socket, HIGH_WATER - len(self._put_off)):
            self._put_off.append(frames)
            # What makes no sense is left to `poll`, which counts it: here it would count twice.
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
        # A consumer that was refused here asks nothing more, so no other message needs an answer.
        if isinstance(message, Hello):
            self._send(identity, Refused(message.query, reason))

    def _send(self, identity: bytes, message: FromProducer) -> None:
        # A ROUTER drops what is for a consumer that is gone or does not read, and says nothing.
        try:
            self._socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            logger.warning("the side channel lost an answer: %s", error)

    def close(self) -> None:
        self._socket.close()
