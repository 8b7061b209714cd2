"""ZMQ sockets to one event source of one worker, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from protocol.curve import Curve
from protocol.event_frames import replay_request
from protocol.kv_events import EventBatch, EventSource
from protocol.registry import InstanceInfo
from services.master.events.follower import Follower
from services.master.events.replay_turns import ReplayTurns
from services.master.events.zmq_reader import ReadRounds, SocketReader
from services.master.fleet.registry import Registry

logger = logging.getLogger(__name__)
_HWM = 100_000  # messages; what ZMQ drops beyond them is a gap, and asked for like any other
_REPLAY_HWM = 32  # our workers keep the rest of an answer; other engines drop it
_REPLAY_TIMEOUT_S = 2.0  # without an answer
_LONGEST_PAUSE_S = 60.0
_MAX_BYTES = 512 << 20  # a snapshot of millions of blocks


@dataclass
class RegistrySink:
    """The place of one worker's source among what is known."""

    registry: Registry
    info: InstanceInfo
    source: int

    def apply(self, batch: EventBatch) -> None:
        self.registry.apply(self.info.instance_id, self.info.generation, batch, self.source)

    def forget(self, *, blocks: bool) -> None:
        info = self.info
        self.registry.forget_caches(info.instance_id, info.generation, self.source, blocks=blocks)


class Subscription:
    """One source of one worker. Where it is silent about what it holds it is asked again, after
    pauses that grow, and given as long to answer."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], source: EventSource, sink: RegistrySink,
        counts: Counter[str], rounds: ReadRounds, turns: ReplayTurns,
        curve: Curve | None = None,
    ) -> None:  # fmt: skip
        self._context = context
        self._curve = curve
        self._source = source
        self._replay_hwm = _HWM if sink.info.foreign else _REPLAY_HWM
        self._counts = counts
        self._rounds = rounds
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._dealer: SocketReader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = _REPLAY_TIMEOUT_S
        self._asked_again = False
        self._problems: set[str] = set()
        # Before the follower, which asks for a snapshot as it is made: what is published after
        # the answer must be heard already.
        self._reader = self._subscribe()
        self.follower = Follower(sink, self._ask if source.replay else None, counts)

    def _subscribe(self) -> SocketReader:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, _HWM)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
        socket.subscribe(self._source.topic.encode())
        return self._connected(socket, self._source.endpoint, self._live)

    def _connected(
        self, socket: zmq.Socket[bytes], endpoint: str, take: Callable[[list[bytes]], None]
    ) -> SocketReader:
        try:
            if self._curve is not None:
                self._curve.connect(socket)
            socket.connect(endpoint)
        except zmq.ZMQError:
            socket.close(0)
            raise
        return SocketReader(socket, take, self._rounds)

    def _ask(self, start: int) -> None:
        self._drop_dealer()
        self._turns.want(self, start)

    def begin(self, start: int) -> None:
        """On a new socket each time: late answers to an earlier question cannot be mistaken."""
        # First: where no socket can be made it is the timer that has it asked again.
        self._watch()
        try:
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.MAXMSGSIZE, _MAX_BYTES)
            socket.setsockopt(zmq.RCVHWM, self._replay_hwm)
            self._dealer = self._connected(socket, self._source.replay, self._replayed)
            socket.send_multipart(replay_request(start), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._counts["bad_endpoint"] += 1
            self._warn(error)

    def _watch(self) -> None:
        """A source that is asked again while no other waits for a turn has more time."""
        self._stop_timer()
        expecting = self._asked_again and self.follower.expecting
        patience = self._pause_s if expecting else _REPLAY_TIMEOUT_S
        self._timer = self._loop.call_later(patience, self._late)

    def _live(self, frames: list[bytes]) -> None:
        self._hand(self.follower.live, frames)

    def _replayed(self, frames: list[bytes]) -> None:
        self._turns.heard(self)
        self._watch()
        self._hand(self.follower.replayed, frames)
        if not self.follower.waiting:
            self._close_dealer()
            self._again_later()

    def _hand(self, take: Callable[[list[bytes]], None], frames: list[bytes]) -> None:
        """A message that makes `take` raise does not end the reading of the others."""
        try:
            take(frames)
        except Exception as error:
            self._counts["failed"] += 1
            self._warn(error)
            self.follower.distrust()
            self._again_later()

    def _late(self) -> None:
        self._close_dealer()
        if self.follower.waiting:
            self.follower.give_up()
        self._again_later()

    def _again_later(self) -> None:
        if self.follower.waiting:
            return
        if not self.follower.incomplete:
            self._pause_s = _REPLAY_TIMEOUT_S
        elif self._timer is None:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._timer = self._loop.call_later(self._pause_s, self._ask_again)

    def _ask_again(self) -> None:
        self._timer = None
        self._asked_again = True
        self.follower.ask_again()

    def _close_dealer(self) -> None:
        """Nothing more is to come of what was asked."""
        self._drop_dealer()
        self._turns.done(self)

    def _drop_dealer(self) -> None:
        self._stop_timer()
        if self._dealer is not None:
            self._dealer.close()
            self._dealer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _warn(self, error: Exception) -> None:
        """Each kind of problem once."""
        kind = type(error).__name__
        if kind not in self._problems:
            self._problems.add(kind)
            logger.warning(
                "the cache events of %s cannot be read: %s", self._source, error, exc_info=error
            )

    def close(self) -> None:
        self._close_dealer()
        self._reader.close()
