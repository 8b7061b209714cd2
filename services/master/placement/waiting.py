"""Requests of one model that wait: those that can still meet their objective before those that
cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from protocol.errors import InternalError, TriptychError
from protocol.placement import Placement, ScheduleRequest
from services.admission.queue import AdmissionQueue
from services.admission.ticket import DEFAULT_PRIORITY, Ticket
from services.master.config import MasterConfig
from services.master.placement.refusals import AllBusy, TooLate, too_late

logger = logging.getLogger(__name__)
PlacementTicket = Ticket[ScheduleRequest, Placement]
PlacementQueue = AdmissionQueue[ScheduleRequest, Placement]
Place = Callable[[ScheduleRequest], Placement]
Refused = Callable[[TriptychError], None]
_NOTHING_LEFT_S = 1e-9  # as 0 is no objective
_HEADS = 8  # waiting requests tried before the rest is taken to be stuck for the same reason
_TURNS = 20  # requests in time that are served before one that is late gets its turn
_SPARE = 0.5  # of its objectives that a late request is to meet from now on: workers have time
_MEMORY = 0.9


def enqueue(
    queue: PlacementQueue,
    request: ScheduleRequest,
    now_ms: float,
    retry_after_s: float,
    at_first: float,
) -> PlacementTicket:
    """Let a request wait; raises what `AdmissionQueue.push` raises."""
    return queue.push(
        request, now_ms, retry_after_s, at_first,
        tenant=request.tenant, priority=request.priority or DEFAULT_PRIORITY,
        cost=request.prompt_tokens, deadline_s=request.deadline_s,
    )  # fmt: skip


def remaining(ticket: PlacementTicket, now_ms: float) -> ScheduleRequest:
    """The ticket's request with what is left of its deadline and its objective."""
    request, waited_s = ticket.request, (now_ms - ticket.since) / 1e3
    changes: dict[str, float] = {}
    if request.deadline_s is not None:
        changes["deadline_s"] = request.deadline_s - waited_s
    if request.ttft_slo_s:
        changes["ttft_slo_s"] = max(_NOTHING_LEFT_S, request.ttft_slo_s - waited_s)
    return msgspec.structs.replace(request, **changes) if changes else request


class WaitingRequests:
    """`late` ones have missed their objective for the first token. They are served while workers
    have time to spare, and one of them in turn with those in time, so that none waits for ever.
    Times are ms."""

    def __init__(self, config: MasterConfig) -> None:
        limit, timeout = config.max_queue, config.queue_timeout * 1e3
        self._refuses = config.queue_policy == "refuse"
        self.in_time = PlacementQueue(limit, timeout, config.max_queue_wait * 1e3)
        self.late = PlacementQueue(limit, timeout)
        self._ttft_ms = 0.0
        self._turns = 0

    def __len__(self) -> int:
        return len(self.in_time) + len(self.late)

    def push(
        self, request: ScheduleRequest, now_ms: float, retry_after_s: float, at_first: float
    ) -> PlacementTicket:
        """Let a request wait; raises what `AdmissionQueue.push` raises, and `TooLate`."""
        objective_ms = (request.ttft_slo_s or 0.0) * 1e3
        foreseen = self.in_time.foreseen_ms(request.priority or DEFAULT_PRIORITY) + self._ttft_ms
        if objective_ms and len(self.in_time) and foreseen > objective_ms:
            return self.push_late(request, now_ms, too_late(foreseen, objective_ms))
        return enqueue(self.in_time, request, now_ms, retry_after_s, at_first)

    def push_late(self, request: ScheduleRequest, now_ms: float, error: TooLate) -> PlacementTicket:
        """Let one wait that cannot meet its objective, or raise `error`."""
        if self._refuses:
            raise error
        return enqueue(self.late, request, now_ms, error.retry_after_s or 1.0, self.late.limit)

    def placed(self, ttft_ms: float) -> None:
        """What a placement is foreseen to take, by which waits are judged."""
        self._ttft_ms = _MEMORY * self._ttft_ms + (1.0 - _MEMORY) * ttft_ms

    def pump(self, place: Place, now_ms: float, refused: Refused) -> None:
        """Place as many as workers have room for."""
        while self._next(place, now_ms, refused):
            pass

    def _next(self, place: Place, now_ms: float, refused: Refused) -> bool:
        """Whether a ticket has ended."""
        if len(self.late) and self._turns >= _TURNS:
            self._turns = 0
            if self._serve_late(place, now_ms, refused, 1.0):
                return True
        for tried, ticket in enumerate(self.in_time.in_order(), 1):
            if self._try(self.in_time, ticket, remaining(ticket, now_ms), place, now_ms, refused):
                self._turns += 1
                return True
            if tried >= _HEADS:
                break
        return not len(self.in_time) and self._serve_late(place, now_ms, refused, _SPARE)

    def _serve_late(self, place: Place, now_ms: float, refused: Refused, share: float) -> bool:
        """The first one, if from now on it would meet a `share` of its objective."""
        for ticket in self.late.in_order():
            # A copy, so that the ticket keeps its objective: what is late has one, of which
            # `remaining` has taken the wait.
            asked = remaining(ticket, now_ms)
            asked.ttft_slo_s = share * (ticket.request.ttft_slo_s or 0.0)
            asked.tpot_slo_s = share * (ticket.request.tpot_slo_s or 0.0)
            return self._try(self.late, ticket, asked, place, now_ms, refused)
        return False

    def _try(
        self,
        queue: PlacementQueue,
        ticket: PlacementTicket,
        asked: ScheduleRequest,
        place: Place,
        now_ms: float,
        refused: Refused,
    ) -> bool:
        """Whether the ticket has left this queue."""
        try:
            placement = place(asked)
        # Stays in line; `in_order` goes on, as another may want other workers.
        except AllBusy:
            return False
        except TooLate as error:
            return queue is self.in_time and self._missed(ticket, error, now_ms, refused)
        except Exception as error:  # at the head of the queue it would be raised again and again
            if not isinstance(error, TriptychError):
                logger.exception("request %s could not be placed", ticket.request.request_id)
                error = InternalError("the master failed to place the request")
            self._end(queue, ticket, error, refused)
            return True
        queue.serve(ticket, now_ms)
        placement.queued_ms = now_ms - ticket.since
        ticket.end(placement)
        return True

    def _missed(
        self, ticket: PlacementTicket, error: TooLate, now_ms: float, refused: Refused
    ) -> bool:
        """One that waited in time is late now."""
        if self._refuses or len(self.late) >= self.late.limit:
            self._end(self.in_time, ticket, error, refused)
        else:
            self.in_time.remove(ticket)
            self.late.put(ticket, now_ms)
        return True

    def _end(
        self, queue: PlacementQueue, ticket: PlacementTicket, error: TriptychError, refused: Refused
    ) -> None:
        refused(error)
        queue.remove(ticket)
        ticket.end(error)

    def cancel(self, ticket: PlacementTicket) -> None:
        """The caller has left."""
        if ticket.outcome is None:
            queue = self.late if ticket in self.late.waiting() else self.in_time
            queue.remove(ticket)

    def expire(self, now_ms: float, refused: Refused) -> None:
        """End those that have waited too long, and find those that are late by now."""
        for queue in (self.in_time, self.late):
            for error in queue.expire(now_ms):
                refused(error)
        for ticket in self.in_time.waiting():
            objective_ms = (ticket.request.ttft_slo_s or 0.0) * 1e3
            foreseen = now_ms - ticket.since + self._ttft_ms
            if objective_ms and foreseen > objective_ms:
                self._missed(ticket, too_late(foreseen, objective_ms), now_ms, refused)
