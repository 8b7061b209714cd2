"""Publishes an engine's cache events from a thread of its own: no step waits for a socket."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

import zmq

from protocol.curve import Curve
from protocol.errors import InternalError
from protocol.kv_events import AllBlocksCleared, AllEmbeddingsCleared, CacheEvent, EventSource
from services.membership.config import TopicOptions
from services.membership.publisher import Publisher

_MAX_STEPS = 100_000
_STOP_S = 5.0
Changes = tuple[list[CacheEvent], list[CacheEvent]]


class EventThread:
    """Owns the sockets. What a step has changed is handed over with `hand`; should the thread ever
    be so far behind that there is no room, all is taken back, so that no index names what may be
    gone."""

    def __init__(
        self,
        kv: TopicOptions | None,
        ec: TopicOptions | None,
        max_steps: int = _MAX_STEPS,
        curve: Curve | None = None,
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._publisher = Publisher(self._context, kv, ec, curve)
        self.sources: list[EventSource] = self._publisher.sources
        self._max_steps = max_steps
        # Without a lock: a deque's append, popleft and clear are safe from several threads.
        self._queue: deque[Changes] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def hand(self, changes: Changes) -> None:
        """Publish what a step has changed; returns at once. `InternalError` if the thread died."""
        if self._error is not None:
            raise InternalError(f"the publisher of cache events has stopped: {self._error}")
        if not any(changes):
            return
        if len(self._queue) >= self._max_steps:
            self._queue.clear()
            changes = [AllBlocksCleared()], [AllEmbeddingsCleared()]
        self._queue.append(changes)
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # Kept for `hand`, which raises in the engine: no master may go by events that stopped.
            self._error = error
            raise
        finally:
            self._publisher.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake, zmq.POLLIN)
        for socket in self._publisher.sockets:
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            if self._wake in dict(poller.poll()):
                os.eventfd_read(self._wake)
            self._publish()
            self._publisher.answer()
        self._publish()  # what came during the last answer

    def _publish(self) -> None:
        while True:
            try:
                changes = self._queue.popleft()
            except IndexError:
                return
            self._publisher.publish(*changes)

    def close(self) -> None:
        """What has been handed over is published first."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(_STOP_S)
        # A ZMQ socket belongs to one thread: one that hangs keeps what it may still use.
        if not self._thread.is_alive():
            os.close(self._wake)
            self._context.destroy(linger=0)
