"""Cache events over ZMQ, in vLLM's format, with replay and snapshot.

No thread, no event loop: the owner of a publisher calls `publish` when there are events and
`answer` when one of its `sockets` is readable, both from one thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import zmq

from protocol.curve import Curve
from protocol.errors import ConfigError, InvalidRequest
from protocol.event_frames import SNAPSHOT, end_frames, event_frames, parse_replay_request
from protocol.kv_events import (
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
)
from services.membership.config import TopicOptions

# Entries of a snapshot in one message: none keeps a reader busy for more than a millisecond.
_PIECE = 250
_PIECE_BLOCKS = 1000
_PIECES = 40_000  # messages of snapshots that may wait for a slow reader
_T = TypeVar("_T")


class _State:
    """What one topic's events add up to, in order of arrival: a block for each medium that has it.

    Only names are kept and told: a master that is our own needs no more of our blocks, and the
    token ids would be nine tenths of a snapshot.
    """

    def __init__(self) -> None:
        self._blocks: dict[str | None, dict[BlockHash, None]] = {}
        self._embeddings: dict[str, EmbeddingStored] = {}
        self._block_size = 0  # tokens in one block, the same in all

    def apply(self, event: CacheEvent) -> None:
        match event:
            case BlockStored():
                held = self._blocks.setdefault(event.medium, {})
                held.update(dict.fromkeys(event.block_hashes))
                self._block_size = event.block_size
            case BlockRemoved():
                held = self._blocks.get(event.medium, {})
                for name in event.block_hashes:
                    held.pop(name, None)
            case AllBlocksCleared():
                self._blocks.clear()
            case EmbeddingStored():
                self._embeddings[event.mm_hash] = event
            case EmbeddingRemoved():
                self._embeddings.pop(event.mm_hash, None)
            case AllEmbeddingsCleared():
                self._embeddings.clear()

    def pieces(self) -> Iterator[list[CacheEvent]]:
        """Everything there is, some at a time; one empty piece if there is nothing."""
        told = False
        for medium, held in self._blocks.items():
            for names in _batches(held, _PIECE_BLOCKS):
                told = True
                yield [BlockStored(names, block_size=self._block_size, medium=medium)]
        for events in _batches(self._embeddings.values(), _PIECE):
            told = True
            yield [*events]
        if not told:
            yield []


def _batches(entries: Iterable[_T], most: int) -> Iterator[list[_T]]:
    found = iter(entries)
    while batch := list(islice(found, most)):
        yield batch


class _Topic:
    """A PUB socket and the ROUTER socket that replays what it has sent."""

    def __init__(
        self, context: zmq.Context[Any], options: TopicOptions, curve: Curve | None
    ) -> None:
        self._topic = options.topic
        self._cleared = AllBlocksCleared() if options.blocks else AllEmbeddingsCleared()
        self._sequence = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=options.buffer_steps)
        self._state = _State()
        self._pub: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self.router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self._pub.setsockopt(zmq.SNDHWM, options.hwm)
        # A ROUTER drops what a slow reader's queue has no room for: a whole answer must fit. Of a
        # snapshot a lost piece would not even be missed, as all of them have one number.
        self.router.setsockopt(zmq.SNDHWM, options.buffer_steps + _PIECES)
        if curve is not None:
            curve.serve(self._pub)
            curve.serve(self.router)
        try:
            endpoint = _bound(self._pub, options.endpoint)
            self.source = EventSource(endpoint, _bound(self.router, options.replay), options.topic)
        except ConfigError:
            self.close()
            raise

    def publish(self, events: Sequence[CacheEvent]) -> None:
        if not events:
            return
        for event in events:
            self._state.apply(event)
        # The wall clock: readers know a restarted publisher by a later time under an old number,
        # and a monotonic clock may begin anew with the machine.
        payload = encode_batch(time.time(), events)
        self._buffer.append((self._sequence, payload))
        # PUB drops for who lags behind: an engine never waits for a reader.
        self._pub.send_multipart(event_frames(self._topic, self._sequence, payload))
        self._sequence += 1

    def answer(self) -> None:
        """Every question that is here."""
        # All of them: where an event loop watches ZMQ's descriptor, it tells of edges only, and
        # a question left unread would wait for the next one.
        while True:
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK)
                client, start = parse_replay_request(frames)
            except zmq.Again:
                return
            # Malformed: there is no question to answer.
            except InvalidRequest:
                continue
            for sequence, payload in self._snapshot() if start == SNAPSHOT else self._since(start):
                self._send(client, event_frames(self._topic, sequence, payload))
            self._send(client, end_frames(self._topic))

    def _send(self, client: bytes, frames: list[bytes]) -> None:
        self.router.send_multipart([client, b"", *frames])

    def _since(self, start: int) -> Iterator[tuple[int, bytes]]:
        return (pair for pair in self._buffer if pair[0] >= start)

    def _snapshot(self) -> Iterator[tuple[int, bytes]]:
        """Nothing at all if nothing was ever said: there is no number to give it."""
        if not self._sequence:
            return
        # A reader may hold what has gone since: the first piece has it forget that.
        before: list[CacheEvent] = [self._cleared]
        for piece in self._state.pieces():
            # The newest number: a subscriber goes on with the event after it.
            yield self._sequence - 1, encode_batch(time.time(), [*before, *piece])
            before = []

    def close(self) -> None:
        # By default ZMQ keeps what no reader has taken, and its context would not end.
        self._pub.close(linger=0)
        self.router.close(linger=0)


class Publisher:
    """The events of one worker; `None` for a kind that it has none of. With `curve` they are for
    the fleet alone: block events carry the token ids of all clients' prompts. `ConfigError` if an
    address is taken or malformed."""

    def __init__(
        self,
        context: zmq.Context[Any],
        kv: TopicOptions | None,
        ec: TopicOptions | None,
        curve: Curve | None = None,
    ) -> None:
        self._curve = curve
        self._topics: list[_Topic] = []
        try:
            self._kv = self._open(context, kv)
            self._ec = self._open(context, ec)
        except ConfigError:
            self.close()
            raise

    def _open(self, context: zmq.Context[Any], options: TopicOptions | None) -> _Topic | None:
        if options is None:
            return None
        topic = _Topic(context, options, self._curve)
        self._topics.append(topic)
        return topic

    @property
    def sources(self) -> list[EventSource]:
        """Where to connect to; a wildcard host stands for every address of this machine."""
        return [topic.source for topic in self._topics]

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Readable when there is something to `answer`."""
        return [topic.router for topic in self._topics]

    def publish(self, kv: Sequence[CacheEvent], ec: Sequence[CacheEvent]) -> None:
        """Send what a step has changed; never waits for a subscriber."""
        if self._kv is not None:
            self._kv.publish(kv)
        if self._ec is not None:
            self._ec.publish(ec)

    def answer(self) -> None:
        """Serve replays and snapshots that are asked for."""
        for topic in self._topics:
            topic.answer()

    def close(self) -> None:
        for topic in self._topics:
            topic.close()


def _bound(socket: zmq.Socket[Any], endpoint: str) -> str:
    """Bind; the endpoint with the port that it got."""
    try:
        # ZMQ binds to IPv4 alone unless it is told before; only IPv6 addresses have brackets.
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"--kv-events-config: cannot publish events at {endpoint}: {error.strerror}"
        ) from None
    # The port that a 0 became. libzmq gives a C string, with the zero byte at its end.
    return socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]
