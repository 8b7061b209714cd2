"""The side channel of KV transfers: who holds which offer, over ZMQ and msgpack.

A consumer sends `fetched` once it has copied an offer's blocks and `release` if it will not; the
producer answers `fetched` with whether it still held them.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import zmq

from protocol.errors import ConfigError
from protocol.refs import KVRef

logger = logging.getLogger(__name__)
PROTOCOL_VERSION = 1


class Fetched(msgspec.Struct, tag=True):
    """`generation` tells this offer from an earlier one of the same request id."""

    query_id: int
    request_id: str
    generation: int
    version: int = PROTOCOL_VERSION


class Release(msgspec.Struct, tag=True):
    request_id: str
    generation: int
    version: int = PROTOCOL_VERSION


class Held(msgspec.Struct, tag=True):
    query_id: int
    held: bool


_FROM_CONSUMER: msgspec.msgpack.Decoder[Fetched | Release] = msgspec.msgpack.Decoder(
    Fetched | Release
)


@dataclass
class _Offer:
    generation: int
    deadline: float


class KVServer:
    """The producer's side: offers with leases."""

    def __init__(self, host: str, port: int, lease_s: float) -> None:
        self._lease = lease_s
        self._offers: dict[str, _Offer] = {}
        self._ended: list[str] = []
        self._generations = itertools.count(1)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot bind the KV side channel to {host}:{port}: {error}"
            ) from None
        endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(endpoint.rpartition(":")[2])
        self.expired = 0
        self.refused = 0

    @property
    def offered(self) -> list[str]:
        return list(self._offers)

    def offer(self, request_id: str) -> int:
        """Start a lease on a request's blocks; returns its generation."""
        generation = next(self._generations)
        self._offers[request_id] = _Offer(generation, time.monotonic() + self._lease)
        return generation

    def withdraw(self, request_id: str) -> None:
        """End an offer from the producer's own side."""
        if self._offers.pop(request_id, None) is not None:
            self._ended.append(request_id)

    def poll(self) -> list[str]:
        """Serve what has arrived; returns the requests whose offers have ended."""
        for identity, data in _receive(self._socket):
            self._serve(identity, data)
        now = time.monotonic()
        for request_id, offer in list(self._offers.items()):
            if offer.deadline <= now:
                self.expired += 1
                self.withdraw(request_id)
        ended, self._ended = self._ended, []
        return ended

    def _serve(self, identity: bytes, data: bytes) -> None:
        try:
            message = _FROM_CONSUMER.decode(data)
        except msgspec.DecodeError as error:
            self.refused += 1
            if self.refused == 1:
                logger.warning("KV side channel: refused a message that is none of ours: %s", error)
            return
        offer = self._offers.get(message.request_id)
        held = offer is not None and offer.generation == message.generation
        if held:
            self.withdraw(message.request_id)
        if isinstance(message, Fetched):
            self._socket.send_multipart(
                [identity, msgspec.msgpack.encode(Held(message.query_id, held))]
            )

    def close(self) -> None:
        self._socket.close()


@dataclass
class Answer:
    """`held` is None until the producer has answered; `deadline` on the monotonic clock."""

    deadline: float
    held: bool | None = None


class KVClient:
    """The consumer's side: one connection per producer."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timeout_s
        self._sockets: dict[tuple[str, int], zmq.Socket[bytes]] = {}
        self._answers: dict[int, Answer] = {}
        self._query_ids = itertools.count()

    def fetched(self, ref: KVRef) -> Answer:
        query_id = next(self._query_ids)
        answer = self._answers[query_id] = Answer(time.monotonic() + self._timeout)
        self._send(ref, Fetched(query_id, ref.request_id, ref.generation))
        return answer

    def release(self, ref: KVRef) -> None:
        self._send(ref, Release(ref.request_id, ref.generation))

    def _send(self, ref: KVRef, message: Fetched | Release) -> None:
        key = (ref.host, ref.port)
        socket = self._sockets.get(key)
        if socket is None:
            socket = self._sockets[key] = zmq.Context.instance().socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 1000)
            socket.connect(f"tcp://{ref.host}:{ref.port}")
        socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)

    def poll(self) -> None:
        now = time.monotonic()
        for socket in self._sockets.values():
            for (data,) in _receive(socket):
                held = msgspec.msgpack.decode(data, type=Held)
                answer = self._answers.pop(held.query_id, None)
                if answer is not None:
                    answer.held = held.held
        self._answers = {k: a for k, a in self._answers.items() if a.deadline > now}

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()


def _receive(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    while True:
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
