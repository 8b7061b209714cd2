"""Requests that wait because every worker is busy: bounded, by priority, fair among tenants."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic

from protocol.errors import DeadlineExceeded, RateLimited, TriptychError, Unavailable
from services.admission.ticket import DEFAULT_PRIORITY, OutcomeT, RequestT, Ticket

_KEPT = 0.98  # of what was learnt, with each one that leaves: some fifty count
_NEWCOMERS = 32  # lanes for tenants that were not served before
_ACCOUNTS = 1024  # lanes without a ticket whose share is remembered
_ROUNDING_MS = 1e-3
_A_FEW = 32  # tickets that may wait before a rate is known
# No API key has this name.
_STRANGERS = "\0strangers"


class ServiceRate:
    """The time between two that leave a queue, learnt only while a request waits: else it would be
    the rate of arrivals. They may leave in bursts. Times are of the caller's clock and unit."""

    def __init__(self) -> None:
        self._since = 0.0
        self._spent = 0.0
        self._left = 0.0

    def begin(self, now: float) -> None:
        """A request waits, and none did before."""
        self._since = now

    def leave(self, now: float) -> None:
        """One more has left since a request began to wait."""
        self._spent = self._spent * _KEPT + now - self._since
        self._left = self._left * _KEPT + 1.0
        self._since = now

    @property
    def known(self) -> bool:
        """Whether a request has left the queue yet."""
        return self._left > 0.0

    def wait(self, before: int) -> float:
        """How long so many take to leave; 0 while nothing is known."""
        return before * self._spent / self._left if self._left else 0.0


@dataclass
class AdmissionQueue(Generic[RequestT, OutcomeT]):
    """At most `limit` tickets, and no more than seem to be served within `wait_ms`, but always one:
    by its wait a rate that was slow is learnt anew.

    Higher priority first; within one, the lane served least so far
    (start-time fair queueing over prompt tokens, Goyal et al. 1996); within a lane, the oldest.

    A tenant has a lane of its own once it has been served, or if it was among the first to come
    since the queue was last empty. All others share one, so that who comes under a new name with
    each request gets one share of the workers and of the queue. Times are ms of the caller's
    clock.
    """

    limit: int  # tickets that may wait
    timeout_ms: float  # the longest wait
    wait_ms: float = math.inf  # the longest wait that is foreseen where more are taken
    _rate: ServiceRate = field(default_factory=ServiceRate)  # how fast tickets are served
    # by priority and lane, the oldest ticket first
    _lanes: dict[int, dict[str, deque[Ticket[RequestT, OutcomeT]]]] = field(default_factory=dict)
    _waiting: Counter[str] = field(default_factory=Counter)  # tickets that wait, by lane
    # virtual start time of each lane, in prompt tokens
    _served: dict[str, float] = field(default_factory=dict)
    _floor: float = 0.0  # virtual time: a lane that comes back begins here
    _newcomers: int = 0  # lanes that were begun before they had been served
    count: int = 0  # tickets in all lanes

    def __len__(self) -> int:
        return self.count

    def push(
        self,
        request: RequestT,
        now_ms: float,
        retry_after_s: float,
        at_first: float = math.inf,
        *,
        tenant: str = "",
        priority: int = DEFAULT_PRIORITY,
        cost: float = 1.0,
        deadline_s: float | None = None,
    ) -> Ticket[RequestT, OutcomeT]:
        """Wait; at most `at_first`, or a few, as long as no rate is known. If the queue is full,
        the newcomer or the request it displaces gets 429 where its lane holds more than a fair
        share of the queue or is outranked, 503 otherwise."""
        wait = self.timeout_ms if deadline_s is None else min(self.timeout_ms, deadline_s * 1e3)
        lane = self._lane(tenant)
        ticket: Ticket[RequestT, OutcomeT] = Ticket(
            request, tenant, priority, cost, now_ms, now_ms + wait, lane
        )
        foreseen_ms = self._rate.wait(self.count + 1)
        late = (
            foreseen_ms > self.wait_ms if self._rate.known else self.count >= max(_A_FEW, at_first)
        )
        if self.count >= self.limit or (self.count and late):
            why = self._why_full(foreseen_ms)
            self._make_room(ticket, max(retry_after_s, foreseen_ms / 1e3), why)
        self._stand(ticket, now_ms)
        return ticket

    def _why_full(self, foreseen_ms: float) -> str:
        if self.count >= self.limit:
            return "the queue is full (--max-queue)"
        if self._rate.known:
            return f"one more would wait for about {foreseen_ms / 1e3:.0f} s (--max-queue-wait)"
        return f"{self.count} requests wait and no speed is measured yet; try again later"

    def _stand(self, ticket: Ticket[RequestT, OutcomeT], now_ms: float) -> None:
        lane = ticket.lane
        if not self.count:
            self._rate.begin(now_ms)
        self._lanes.setdefault(ticket.priority, {}).setdefault(lane, deque()).append(ticket)
        self._waiting[lane] += 1
        self.count += 1
        self._newcomers += lane != _STRANGERS and lane not in self._served
        self._served[lane] = max(self._served.get(lane, 0.0), self._floor)

    def _lane(self, tenant: str) -> str:
        known = tenant in self._served or self._newcomers < _NEWCOMERS
        return tenant if known else _STRANGERS

    def _make_room(
        self, newcomer: Ticket[RequestT, OutcomeT], retry_after_s: float, why: str
    ) -> None:
        """Displace the youngest of the lowest priority, of the lane that waits most there."""
        lowest = min(self._lanes, default=newcomer.priority)
        lanes = self._lanes.get(lowest, {})
        longest = max(lanes, key=lambda name: self._waiting[name], default="")
        outranked = lowest < newcomer.priority
        mine, theirs = self._waiting[newcomer.lane], self._waiting[longest]
        if (
            self.limit
            and lanes
            # One more: else two lanes of nearly one length would displace each other in turn.
            and (outranked or (lowest == newcomer.priority and theirs > mine + 1))
        ):
            # The youngest: it has waited least.
            victim = lanes[longest][-1]
            self.remove(victim)
            message = "the queue is full and another request goes first"
            victim.end(RateLimited(message, code="preempted", retry_after_s=retry_after_s))
            return
        share = self.limit / max(1, len(+self._waiting))
        if self.limit and len(+self._waiting) > 1 and mine >= share:
            raise RateLimited(
                "all workers are busy and your share of the queue is used up",
                retry_after_s=retry_after_s,
            )
        raise Unavailable(
            f"all workers are busy and {why}",
            code="queue_full",
            retry_after_s=retry_after_s,
        )

    def foreseen_ms(self, priority: int = DEFAULT_PRIORITY) -> float:
        """How long one more would wait behind those of its priority or a higher one; 0 while no
        rate is known."""
        ahead = [lanes for at, lanes in self._lanes.items() if at >= priority]
        return self._rate.wait(1 + sum(len(lane) for lanes in ahead for lane in lanes.values()))

    def put(self, ticket: Ticket[RequestT, OutcomeT], now_ms: float) -> bool:
        """A ticket of another queue waits here, as long as it was to wait there; False if there is
        no room."""
        if self.count >= self.limit:
            return False
        ticket.lane = self._lane(ticket.tenant)
        self._stand(ticket, now_ms)
        return True

    def waiting(self) -> list[Ticket[RequestT, OutcomeT]]:
        """All of them, in no order."""
        return [t for lanes in self._lanes.values() for lane in lanes.values() for t in lane]

    def in_order(self) -> Iterator[Ticket[RequestT, OutcomeT]]:
        """The first ticket of each lane in the order of service. `remove` ends the iteration."""
        for priority in sorted(self._lanes, reverse=True):
            lanes = self._lanes[priority]
            for lane in sorted(lanes, key=lambda name: (self._served[name], lanes[name][0].since)):
                yield lanes[lane][0]

    def serve(self, ticket: Ticket[RequestT, OutcomeT], now_ms: float) -> None:
        """The ticket waits no more, and its lane has had its turn."""
        self._rate.leave(now_ms)
        # Virtual time never goes back: an idle lane saves up no share.
        self._floor = max(self._floor, self._served[ticket.lane])
        self._served[ticket.lane] += ticket.cost
        # A tenant served in the shared lane gets its own, which begins where that one stands.
        self._served.setdefault(ticket.tenant, self._served[ticket.lane])
        if len(self._served) > _ACCOUNTS + len(self._waiting):
            self._forget()
        # Last: with the queue's last ticket it forgets the accounts that are written here.
        self.remove(ticket)

    def _forget(self) -> None:
        """Of lanes where no request waits, those that would begin as new ones do; and if those are
        few, the ones that have been served least."""
        idle = [name for name in self._served if name not in self._waiting]
        idle.sort(key=lambda name: self._served[name])
        for i, name in enumerate(idle):
            if self._served[name] > self._floor and i >= len(idle) - _ACCOUNTS // 2:
                break
            del self._served[name]

    def remove(self, ticket: Ticket[RequestT, OutcomeT]) -> None:
        """The ticket waits no more."""
        lane, lanes = ticket.lane, self._lanes[ticket.priority]
        lanes[lane].remove(ticket)
        if not lanes[lane]:
            del lanes[lane]
        if not lanes:
            del self._lanes[ticket.priority]
        self.count -= 1
        self._waiting[lane] -= 1
        if not self._waiting[lane]:
            del self._waiting[lane]
        if not self.count:  # no request competes any more
            self._served.clear()
            self._floor, self._newcomers = 0.0, 0

    def expire(self, now_ms: float) -> list[TriptychError]:
        """End the tickets that have waited too long; their errors."""
        late = [ticket for ticket in self.waiting() if ticket.until <= now_ms]
        errors = [self._late(ticket) for ticket in late]
        for ticket, error in zip(late, errors, strict=True):
            self.remove(ticket)
            ticket.end(error)
        return errors

    def _late(self, ticket: Ticket[RequestT, OutcomeT]) -> TriptychError:
        waited = ticket.until - ticket.since
        # `until` less `since` differs from the timeout by what floats round.
        if waited < self.timeout_ms - _ROUNDING_MS and math.isfinite(waited):
            return DeadlineExceeded("the deadline passed while all workers were busy")
        return Unavailable(
            f"all workers were busy for {waited / 1e3:.0f} s",
            code="queue_timeout",
            retry_after_s=1.0,
        )
