"""ZMQ sockets to the event sources of all workers, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from protocol.kv_events import EventBatch, EventSource, replay_request
from protocol.registry import InstanceInfo
from services.master.follower import Follower
from services.master.master import Master

logger = logging.getLogger(__name__)
_HWM = 100_000
_AT_ONCE = 256
_REPLAY_TIMEOUT_S = 2.0
_MAX_SOCKETS = 65_000
_MAX_BYTES = 512 << 20  # a snapshot of millions of blocks


@dataclass
class _Sink:
    """One worker's place in the master."""

    master: Master
    info: InstanceInfo

    def apply(self, batch: EventBatch) -> None:
        self.master.apply(self.info, batch)

    def forget(self, *, blocks: bool) -> None:
        self.master.forget_caches(self.info, blocks=blocks)


class _Reader:
    """Hands every message of a socket to `take`, a bounded number in each turn of the loop.

    ZMQ's descriptor tells of edges: the socket must be read until it is empty.
    """

    def __init__(self, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.fileno(), self.read)
        self._loop.call_soon(self.read)

    def read(self) -> None:
        for _ in range(_AT_ONCE):
            if self.socket.closed:
                return
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(frames)
        self._loop.call_soon(self.read)

    def close(self) -> None:
        self._loop.remove_reader(self.socket.fileno())
        self.socket.close(0)


class _Subscription:
    """One source of one worker."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], source: EventSource, sink: _Sink,
        counts: Counter[str],
    ) -> None:  # fmt: skip
        self._context = context
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._dealer: _Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, _HWM)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        socket.subscribe(source.topic.encode())
        try:
            socket.connect(source.endpoint)
            self.follower = Follower(sink, self._ask if source.replay else None, counts)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self._reader = _Reader(socket, self.follower.live)

    def _ask(self, start: int) -> None:
        """On a new socket each time: late answers to an earlier question cannot be mistaken."""
        self._close_dealer()
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        try:
            socket.connect(self._source.replay)
        except zmq.ZMQError:
            socket.close(0)
            raise
        socket.send_multipart(replay_request(start))
        self._dealer = _Reader(socket, self._replayed)
        self._watch()

    def _watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_REPLAY_TIMEOUT_S, self._late)

    def _replayed(self, frames: list[bytes]) -> None:
        self._watch()
        self.follower.replayed(frames)
        if not self.follower.waiting:
            self._close_dealer()

    def _late(self) -> None:
        self._close_dealer()
        if self.follower.waiting:
            self.follower.give_up()

    def _close_dealer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None

    def close(self) -> None:
        self._close_dealer()
        self._reader.close()


@dataclass
class Subscriber:
    """All subscriptions; `joined` and `left` are what a `Master` tells. `counts`: what was wrong
    with messages (garbage, gap, duplicate, restart, lost) and how often a replay was asked for."""

    counts: Counter[str] = field(default_factory=Counter)
    master: Master | None = None
    _context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    _open: dict[str, list[_Subscription]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)

    def joined(self, info: InstanceInfo) -> None:
        assert self.master is not None
        subscriptions = self._open.setdefault(info.instance_id, [])
        for source in info.events:
            try:
                sink = _Sink(self.master, info)
                subscriptions.append(_Subscription(self._context, source, sink, self.counts))
            except zmq.ZMQError as error:
                self.counts["bad_endpoint"] += 1
                logger.warning("events of %s at %s: %s", info.instance_id, source, error)

    def left(self, info: InstanceInfo) -> None:
        for subscription in self._open.pop(info.instance_id, []):
            subscription.close()

    def close(self) -> None:
        for subscriptions in self._open.values():
            for subscription in subscriptions:
                subscription.close()
        self._open.clear()
        self._context.destroy(0)
