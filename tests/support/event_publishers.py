"""A publisher of cache events over real sockets, and a master that follows it."""

import time
from typing import Any

import zmq

from protocol.event_frames import SNAPSHOT, end_frames, event_frames, parse_replay_request
from protocol.kv_events import AllBlocksCleared, BlockStored, EventSource, encode_batch
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.events.subscriber import Subscriber
from services.master.listener import MasterListener
from services.master.master import Master
from tests.support.waiting import eventually


class Publisher:
    """A PUB socket and a ROUTER socket that answers with a snapshot whenever it `serve`s."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.pub = context.socket(zmq.PUB)
        self.router = context.socket(zmq.ROUTER)
        ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self.pub, self.router)]
        self.source = EventSource(*(f"tcp://127.0.0.1:{port}" for port in ports))
        self.sequence = -1
        self.keys: list[Any] = []

    def publish(self, *keys: int, lose: bool = False) -> None:
        self.keys += keys
        self.send(encode_batch(time.time(), [BlockStored(list(keys))]), lose=lose)

    def send(self, payload: bytes, *, lose: bool = False) -> None:
        self.sequence += 1
        if not lose:
            self.pub.send_multipart(event_frames("", self.sequence, payload))

    async def asked(self) -> tuple[bytes, int]:
        await eventually(lambda: bool(self.router.poll(0)))
        return parse_replay_request(self.router.recv_multipart())

    async def serve(self) -> None:
        """One question."""
        client, start = await self.asked()
        if start == SNAPSHOT and self.sequence >= 0:
            whole = encode_batch(time.time(), [AllBlocksCleared(), BlockStored(list(self.keys))])
            self.router.send_multipart([client, b"", *event_frames("", self.sequence, whole)])
        self.router.send_multipart([client, b"", *end_frames()])


class Follower(MasterListener):
    """A master that follows one publisher."""

    def __init__(
        self,
        source: EventSource,
        context: zmq.Context[Any] | None = None,
        *,
        foreign: bool = False,
        **config: Any,
    ) -> None:
        self.master = Master(MasterConfig(**config), None, self)
        registry = self.master.registry
        self.subscriber = (
            Subscriber(registry) if context is None else Subscriber(registry, _context=context)
        )
        self.master.register(
            InstanceInfo("w", "prefill", "http://w:1", "m", events=[source], foreign=foreign),
            time.monotonic(),
        )

    def joined(self, info: InstanceInfo) -> None:
        self.subscriber.joined(info)

    def left(self, info: InstanceInfo) -> None:
        self.subscriber.left(info)

    @property
    def counts(self) -> Any:
        return self.subscriber.counts

    @property
    def keys(self) -> set[int]:
        return set(self.master.registry.fleet("m").blocks.keys(0))
