"""Peers on a side channel that say what a test wants."""

from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from connectors.messages import FromProducer, Hello, Welcome
from connectors.node import Node
from protocol.curve import Curve
from protocol.refs import KVRef
from tests.support.links import Link


class RawConsumer:
    """A process that reaches a side channel; it sends frames as they are."""

    def __init__(self, port: int, curve: Curve | None = None) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if curve is not None:
            curve.connect(self._socket)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._decoder = msgspec.msgpack.Decoder(FromProducer)

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def say(self, message: msgspec.Struct) -> None:
        self.send(msgspec.msgpack.encode(message))

    def heard(self) -> Any:
        """An answer, None if there is none yet."""
        try:
            return self._decoder.decode(self._socket.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def close(self) -> None:
        self._socket.close()


@dataclass
class _Asked:
    identity: bytes
    message: Any


class RawProducer:
    """A producer that shakes hands as `real` does, with its memory, and says what a test wants."""

    def __init__(self, real: Node) -> None:
        self._real = real
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.port: int = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.instance_id = real.instance_id
        self.description: bytes | None = None
        self.asked: list[_Asked] = []

    def params(self) -> dict[str, Any]:
        return {"peer_host": "127.0.0.1", "peer_port": self.port}

    def ref(self, name: str, tokens: int) -> KVRef:
        return KVRef(name, self.instance_id, (), tokens, host="127.0.0.1", port=self.port)

    def poll(self) -> None:
        """Shake hands; keep everything else for the test."""
        while self._socket.poll(0):
            identity, data = self._socket.recv_multipart()
            message = msgspec.msgpack.decode(data)
            if message["type"] != "Hello":
                self.asked.append(_Asked(identity, message))
                continue
            hello = msgspec.convert(message, Hello)
            described = self.description or self._real.transport.describe(hello.region)
            self.send(identity, Welcome(hello.query, self.instance_id, described))

    def took(self, kind: str) -> _Asked | None:
        """The first message of a kind that was not taken yet."""
        self.poll()
        found = next((asked for asked in self.asked if asked.message["type"] == kind), None)
        if found is not None:
            self.asked.remove(found)
        return found

    def send(self, identity: bytes, *messages: msgspec.Struct) -> None:
        for message in messages:
            self.send_raw(identity, msgspec.msgpack.encode(message))

    def send_raw(self, identity: bytes, *frames: bytes) -> None:
        self._socket.send_multipart([identity, *frames])

    def close(self) -> None:
        self._socket.close()


def answered(link: Link, raw: RawConsumer) -> Any:
    """The next answer, while the producer is polled."""
    got: list[Any] = []
    link.until(lambda: got.extend(a for a in [raw.heard()] if a is not None) or got)
    return got[0]


def introduced(link: Link, raw: RawConsumer, region: str) -> None:
    """A handshake of `raw` with the producer, as a fitting peer for a region."""
    node = link.producer.node
    wanted = node.compatibility(region)
    raw.say(Hello(1, "me", node.transport.name, region, wanted))
    assert isinstance(answered(link, raw), Welcome)
