"""Cache events of a mock worker, served by the event loop that it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import zmq

from protocol.curve import Curve
from protocol.kv_events import CacheEvent, EventSource
from services.membership import publisher
from services.membership.config import parse_events

_BUFFERED = 1000


class Publisher:
    """The events of one worker, on free ports of `host`."""

    def __init__(
        self,
        context: zmq.Context[Any],
        host: str,
        *,
        blocks: bool,
        embeddings: bool,
        curve: Curve | None = None,
    ) -> None:
        config = parse_events(f'{{"buffer_steps": {_BUFFERED}}}', host, default=True)
        assert config is not None
        self._publisher = publisher.Publisher(
            # A shadow of the same context: its sockets are not asyncio's, whose calls are awaited.
            zmq.Context(context),
            config.blocks() if blocks else None,
            config.embeddings() if embeddings else None,
            curve,
        )
        self._loop = asyncio.get_running_loop()
        for socket in self._publisher.sockets:
            # ZMQ's descriptors tell of changes alone: `answer` takes all that has come.
            self._loop.add_reader(socket.fileno(), self._publisher.answer)

    @property
    def sources(self) -> list[EventSource]:
        return self._publisher.sources

    def publish(self, kv: Sequence[CacheEvent], ec: Sequence[CacheEvent]) -> None:
        """Send what a step has changed."""
        self._publisher.publish(kv, ec)

    async def close(self) -> None:
        for socket in self._publisher.sockets:
            self._loop.remove_reader(socket.fileno())
        self._publisher.close()
