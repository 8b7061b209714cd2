"""Requests that wait until a worker of their model is less busy."""

from __future__ import annotations

import msgspec

from protocol.placement import Placement, ScheduleRequest
from services.admission.queue import AdmissionQueue
from services.admission.ticket import DEFAULT_PRIORITY, Ticket

_NOTHING_LEFT_S = 1e-9  # as 0 is no objective

PlacementTicket = Ticket[ScheduleRequest, Placement]
PlacementQueue = AdmissionQueue[ScheduleRequest, Placement]


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
