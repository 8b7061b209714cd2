"""Requests that wait because all workers are busy, and deadlines that run meanwhile."""

import pytest

from protocol.errors import DeadlineExceeded, Unavailable
from protocol.placement import Finished, Placement, ScheduleRequest
from protocol.registry import InstanceInfo, InstanceName
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.refusals import AllBusy
from services.master.placement.waiting import (
    PlacementQueue,
    WaitingRequests,
    enqueue,
    remaining,
)
from tests.support.master_fleets import add, asking, master, place


def test_when_all_are_busy_requests_wait_and_then_go_in_turn() -> None:
    made = master("prefill", "decode", busy_queue_ms=100.0, max_queue=2)
    place(made, asking("a", blocks=0))
    low = made.schedule(asking("b", blocks=0, priority=1), 0.0)
    high = made.schedule(asking("c", blocks=0, priority=99), 0.0)
    assert isinstance(low, Ticket)
    assert isinstance(high, Ticket)
    with pytest.raises(Unavailable) as caught:
        made.schedule(asking("d", blocks=0, priority=1), 0.0)
    assert (caught.value.code, caught.value.status) == ("queue_full", 503)
    assert caught.value.retry_after_s
    made.pump(0.01)
    assert (low.outcome, high.outcome) == (None, None)
    made.pump(0.1)
    assert isinstance(high.outcome, Placement)
    assert high.outcome.queued_ms == pytest.approx(100.0)
    assert low.outcome is None
    made.finished(Finished("a"), 0.11)
    made.finished(Finished("c"), 0.12)
    made.pump(0.12)
    assert isinstance(low.outcome, Placement)
    assert made.waiting == 0


def test_the_time_spent_waiting_counts_against_the_deadline() -> None:
    made = master("prefill", "decode", busy_queue_ms=100.0)
    place(made, asking("a", blocks=0))
    ticket = made.schedule(asking("b", blocks=0, deadline_s=0.25), 0.0)
    assert isinstance(ticket, Ticket)
    made.finished(Finished("a"), 0.15)
    made.pump(0.15)
    assert isinstance(ticket.outcome, Unavailable)
    assert ticket.outcome.code == "deadline_unreachable"


def test_a_waiting_request_can_leave_or_lose_its_worker() -> None:
    made = master("prefill", "decode", busy_queue_ms=100.0)
    place(made, asking("a", blocks=0))
    gone = made.schedule(asking("b", blocks=0), 0.0)
    stays = made.schedule(asking("c", blocks=0), 0.0)
    assert isinstance(gone, Ticket)
    assert isinstance(stays, Ticket)
    made.cancel(gone)
    assert made.waiting == 1
    made.deregister(InstanceName("p0"), 0.0)
    made.deregister(InstanceName("d1"), 0.0)
    made.pump(0.0)
    assert isinstance(stays.outcome, Unavailable)


def test_a_deadline_that_cannot_be_met_is_refused_before_any_work() -> None:
    made = master("prefill", "decode")
    with pytest.raises(Unavailable) as caught:
        made.schedule(asking("a", blocks=0, deadline_s=0.1), 0.0)
    assert caught.value.code == "deadline_unreachable"
    with pytest.raises(DeadlineExceeded):
        made.schedule(asking("a", deadline_s=0.0), 0.0)
    assert len(made.ledger) == 0
    assert made.totals.refused == {"deadline_unreachable": 1, "deadline_exceeded": 1}


def test_a_tenant_leaves_room_while_another_asks() -> None:
    """Four run at once, half of them for one tenant: its third waits, another's does not."""
    made = master("prefill", tenant_share=0.5)
    add(made, "d9", "decode", max_running=4)
    place(made, asking("b0", blocks=0, tenant="b"))
    for number in range(2):
        place(made, asking(f"a{number}", blocks=0, tenant="a"))
    waits = made.schedule(asking("a2", blocks=0, tenant="a"), 0.0)
    assert isinstance(waits, Ticket) and waits.outcome is None
    other = made.schedule(asking("b1", blocks=0, tenant="b"), 0.0)
    assert isinstance(other, Placement) or isinstance(other.outcome, Placement)
    made.finished(Finished("b0"), 0.1)
    made.pump(0.1)
    assert waits.outcome is None
    made.finished(Finished("a0"), 0.2)
    made.pump(0.2)
    assert isinstance(waits.outcome, Placement)


def test_a_tenant_alone_may_have_all_places() -> None:
    made = master("prefill", tenant_share=0.25)
    add(made, "d9", "decode", max_running=4)
    place(made, asking("b", blocks=0, tenant="b"))
    for number in range(4):
        place(made, asking(f"a{number}", blocks=0, tenant="a"), 10.5)
    assert len(made.ledger) == 5


def test_who_names_no_model_can_still_leave_when_a_second_model_has_come() -> None:
    made = Master(MasterConfig(busy_requests=1, seed=1))
    made.register(InstanceInfo("d", "decode", "http://d:1", "m"), 0.0)
    assert isinstance(made.schedule(ScheduleRequest("first", 100), 0.0), Placement)
    ticket = made.schedule(ScheduleRequest("second", 100), 0.0)
    made.register(InstanceInfo("e", "decode", "http://e:1", "n"), 0.0)
    assert isinstance(ticket, Ticket) and made.waiting == 1
    made.cancel(ticket)
    assert made.waiting == 0


def test_a_worker_that_decodes_is_busy_at_twice_what_it_runs() -> None:
    master = Master(MasterConfig(seed=1))
    master.register(InstanceInfo("d", "pdfusion", "http://d:1", model="m", max_running=3), 0.0)
    placed = [master.schedule(ScheduleRequest(f"r{n}", 10, model="m"), 0.0) for n in range(8)]
    assert [type(one) for one in placed] == [Placement] * 6 + [Ticket] * 2


def test_a_queue_that_is_stuck_is_not_tried_to_its_end() -> None:
    waiting = WaitingRequests(MasterConfig(max_queue=100))
    for number in range(20):
        waiting.push(ScheduleRequest(f"r{number}", 10, tenant=f"{number}"), 0.0, 1.0, 1.0)
    tried: list[str] = []

    def full(asked: ScheduleRequest) -> Placement:
        tried.append(asked.request_id)
        raise AllBusy("all are busy")

    waiting.pump(full, 0.0, lambda error: None)
    assert tried == [f"r{number}" for number in range(8)] and len(waiting) == 20


def test_what_is_left_of_a_deadline_shrinks_while_a_request_waits() -> None:
    queue = PlacementQueue(10, 1e4)
    asked = ScheduleRequest("r", 10, deadline_s=3.0, tenant="t", priority=0)
    ticket = enqueue(queue, asked, 1_000.0, 1.0, 1.0)
    assert remaining(ticket, 2_500.0).deadline_s == 1.5
    assert (ticket.tenant, ticket.priority, ticket.cost, ticket.until) == ("t", 50, 10, 4_000.0)
    patient = enqueue(queue, ScheduleRequest("p", 10), 0.0, 1.0, 1.0)
    assert remaining(patient, 9e3) is patient.request
