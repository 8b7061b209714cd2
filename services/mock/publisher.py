"""Cache events of a mock worker over ZMQ, in vLLM's format, with replay and snapshot."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import zmq
import zmq.asyncio

from protocol.errors import InvalidRequest
from protocol.kv_events import (
    EC_TOPIC,
    KV_TOPIC,
    SNAPSHOT,
    AllBlocksCleared,
    AllEmbeddingsCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EmbeddingRemoved,
    EmbeddingStored,
    EventSource,
    encode_batch,
    end_frames,
    event_frames,
    parse_replay_request,
)

_BUFFERED = 1000


class _State:
    """What one topic's events add up to, in order of arrival."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, BlockStored] = {}
        self._embeddings: dict[str, EmbeddingStored] = {}

    def apply(self, event: CacheEvent) -> None:
        match event:
            case BlockStored():
                self._blocks.update((one.block_hashes[0], one) for one in _single(event))
            case BlockRemoved():
                for name in event.block_hashes:
                    self._blocks.pop(name, None)
            case AllBlocksCleared():
                self._blocks.clear()
            case EmbeddingStored():
                self._embeddings[event.mm_hash] = event
            case EmbeddingRemoved():
                self._embeddings.pop(event.mm_hash, None)
            case AllEmbeddingsCleared():
                self._embeddings.clear()

    def events(self) -> Iterable[CacheEvent]:
        yield from self._blocks.values()
        yield from self._embeddings.values()


def _single(event: BlockStored) -> Iterable[BlockStored]:
    """One event for each block."""
    size, parent = event.block_size, event.parent_block_hash
    for number, name in enumerate(event.block_hashes):
        tokens = event.token_ids[number * size : (number + 1) * size]
        extra = event.extra_keys[number : number + 1] if event.extra_keys else None
        yield BlockStored([name], parent, tokens, size, medium=event.medium, extra_keys=extra)
        parent = name


class _Topic:
    """A PUB socket and the ROUTER socket that replays what it has sent."""

    def __init__(self, context: zmq.asyncio.Context, host: str, topic: str) -> None:
        self._topic = topic
        self._cleared = AllBlocksCleared() if topic == KV_TOPIC else AllEmbeddingsCleared()
        self._sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=_BUFFERED)
        self._state = _State()
        self._pub = zmq.Context(context).socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.SNDHWM, 100_000)
        self.source = EventSource(_bound(self._pub, host), _bound(self._router, host), topic)

    def publish(self, events: Sequence[CacheEvent]) -> None:
        if not events:
            return
        for event in events:
            self._state.apply(event)
        payload = encode_batch(time.time(), events)
        self._buffer.append((self._sequence, payload))
        self._pub.send_multipart(event_frames(self._topic, self._sequence, payload))
        self._sequence += 1

    async def answer_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            try:
                client, start = parse_replay_request(frames)
            except InvalidRequest:
                continue
            if start == SNAPSHOT:
                whole = encode_batch(time.time(), [self._cleared, *self._state.events()])
                answers = [(max(0, self._sequence - 1), whole)]
            else:
                answers = [pair for pair in self._buffer if pair[0] >= start]
            for sequence, payload in answers:
                frames = event_frames(self._topic, sequence, payload)
                await self._router.send_multipart([client, b"", *frames])
            await self._router.send_multipart([client, b"", *end_frames(self._topic)])

    def close(self) -> None:
        self._pub.close(linger=0)
        self._router.close(linger=0)


class Publisher:
    """The events of one worker."""

    def __init__(
        self, context: zmq.asyncio.Context, host: str, *, blocks: bool, embeddings: bool
    ) -> None:
        self._kv = _Topic(context, host, KV_TOPIC) if blocks else None
        self._ec = _Topic(context, host, EC_TOPIC) if embeddings else None
        self._topics = [topic for topic in (self._kv, self._ec) if topic is not None]
        self._tasks = [asyncio.create_task(topic.answer_replays()) for topic in self._topics]

    @property
    def sources(self) -> list[EventSource]:
        return [topic.source for topic in self._topics]

    def publish(self, kv: Sequence[CacheEvent], ec: Sequence[CacheEvent]) -> None:
        """Send what a step has changed."""
        if self._kv is not None:
            self._kv.publish(kv)
        if self._ec is not None:
            self._ec.publish(ec)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in self._topics:
            topic.close()


def _bound(socket: zmq.Socket[Any], host: str) -> str:
    """Bind to a free port; the endpoint to connect to."""
    port = socket.bind_to_random_port(f"tcp://{host}")
    return f"tcp://{host}:{port}"
