"""The event sources of all workers: who is followed, and what is not known."""

from __future__ import annotations

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

    def __post_init__(self) -> None:
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)

    def joined(self, info: InstanceInfo) -> None:
        if not self.registry.config.follow_events:
            return
        subscriptions = self._open.setdefault(info.instance_id, [])
        for number, source in enumerate(info.events):
            try:
                sink = RegistrySink(self.registry, info, number)
                curve = None if info.foreign else self.curve
                one = Subscription(
                    self._context, source, sink, self.counts, self._rounds, self._turns, curve
                )
                subscriptions.append(one)
            except zmq.ZMQError as error:
                self.counts["bad_endpoint"] += 1
                logger.warning("events of %s at %s: %s", info.instance_id, source, error)

    @property
    def incomplete(self) -> int:
        """Sources of which not all is known that their caches hold."""
        known = (one.follower for sources in self._open.values() for one in sources)
        return sum(follower.lacking for follower in known)

    def left(self, info: InstanceInfo) -> None:
        for subscription in self._open.pop(info.instance_id, []):
            subscription.close()

    def close(self) -> None:
        for subscriptions in self._open.values():
            for subscription in subscriptions:
                subscription.close()
        self._open.clear()
        self._context.destroy(0)
