"""The event sources of all workers: who is followed, and what is not known."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from dataclasses import dataclass, field

import zmq

from protocol.curve import Curve
from protocol.registry import InstanceInfo
from services.master.events.replay_turns import ReplayTurns
from services.master.events.subscription import RegistrySink, Subscription
from services.master.events.zmq_reader import ReadRounds
from services.master.fleet.registry import Registry

logger = logging.getLogger(__name__)
_RETRY_S, _LONGEST_RETRY_S = 2.0, 60.0
_MAX_SOCKETS = 65_000  # ZMQ's own bound of 1,023 a few hundred workers with two sources reach


@dataclass
class Subscriber:
    """All subscriptions; `joined` and `left` are what a registry's listener is told. `counts`: what
    was wrong with messages (garbage, gap, duplicate, restart, lost) and how often a replay was
    asked for. `curve`: of the fleet's own workers; other engines publish in the clear."""

    registry: Registry
    curve: Curve | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)
    _rounds: ReadRounds = field(default_factory=ReadRounds)
    _turns: ReplayTurns = field(default_factory=ReplayTurns)
    _open: dict[str, list[Subscription]] = field(default_factory=dict)
    # By instance id and the source's number: those without a socket, until they are tried again
    _missed: dict[str, dict[int, asyncio.TimerHandle]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)

    def joined(self, info: InstanceInfo) -> None:
        if not self.registry.config.follow_events:
            return
        self._open[info.instance_id], self._missed[info.instance_id] = [], {}
        for number in range(len(info.events)):
            self._follow(info, number)

    def _follow(self, info: InstanceInfo, number: int, paused_s: float = 0.0) -> None:
        """Where no socket can be made the source is tried again, as long as its worker is there: a
        process without files has some again later. `paused_s`: since it was last tried."""
        missed = self._missed[info.instance_id]
        missed.pop(number, None)
        source, curve = info.events[number], None if info.foreign else self.curve
        sink = RegistrySink(self.registry, info, number)
        try:
            one = Subscription(
                self._context, source, sink, self.counts, self._rounds, self._turns, curve
            )
            self._open[info.instance_id].append(one)
        except zmq.ZMQError as error:
            self.counts["bad_endpoint"] += 1
            if not paused_s:
                logger.warning(
                    "the cache events of worker %s cannot be read at %s: %s",
                    info.instance_id,
                    source,
                    error,
                )
            pause_s = min(2 * paused_s or _RETRY_S, _LONGEST_RETRY_S)
            again = functools.partial(self._follow, info, number, pause_s)
            missed[number] = asyncio.get_running_loop().call_later(pause_s, again)

    @property
    def incomplete(self) -> int:
        """Sources of which not all is known that their caches hold."""
        known = (one.follower for sources in self._open.values() for one in sources)
        return sum(follower.lacking for follower in known) + sum(map(len, self._missed.values()))

    def left(self, info: InstanceInfo) -> None:
        self._drop(info.instance_id)

    def _drop(self, instance_id: str) -> None:
        for timer in self._missed.pop(instance_id, {}).values():
            timer.cancel()
        for subscription in self._open.pop(instance_id, []):
            subscription.close()

    def close(self) -> None:
        for instance_id in list(self._open):
            self._drop(instance_id)
        self._context.destroy(0)
