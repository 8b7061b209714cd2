"""Who waits, who goes first, and who is told to come back."""

from typing import Any

import pytest

from protocol.errors import DeadlineExceeded, RateLimited, TriptychError, Unavailable
from protocol.registry import InstanceInfo, Placement, ScheduleRequest, Target
from services.master.admission import AdmissionQueue, Ticket
from services.master.config import MasterConfig
from services.master.master import Master

DONE = Placement("", Target("", "", "decode"))


def request(name: str, tenant: str = "", tokens: int = 100, **fields: Any) -> ScheduleRequest:
    return ScheduleRequest(name, tokens, tenant=tenant, **fields)


def push(queue: AdmissionQueue, *args: Any, now_ms: float = 0.0, **fields: Any) -> Ticket:
    return queue.push(request(*args, **fields), now_ms, 1.0)


def served(queue: AdmissionQueue, count: int) -> list[str]:
    names = []
    for _ in range(count):
        ticket = next(queue.in_order())
        queue.remove(ticket, served=True)
        ticket.end(DONE)
        names.append(ticket.request.request_id)
    return names


def test_priority_goes_before_age() -> None:
    queue = AdmissionQueue(10, 1e4)
    push(queue, "low", priority=10)
    push(queue, "usual")
    push(queue, "fifty", priority=50)
    push(queue, "high", priority=90)
    assert served(queue, 4) == ["high", "usual", "fifty", "low"]
    assert len(queue) == 0


def test_tenants_get_equal_tokens_however_many_requests_they_send() -> None:
    queue = AdmissionQueue(100, 1e4)
    for i in range(20):
        push(queue, f"hog{i}", "hog", now_ms=i)
    for i in range(4):
        push(queue, f"small{i}", "small", now_ms=100 + i)
        push(queue, f"large{i}", "large", 200, now_ms=100 + i)
    order = served(queue, 10)
    assert sum(name.startswith("hog") for name in order) == 4
    assert sum(name.startswith("small") for name in order) == 4
    assert sum(name.startswith("large") for name in order) == 2


def test_a_tenant_that_comes_late_has_no_arrears_and_no_credit() -> None:
    queue = AdmissionQueue(100, 1e4)
    for i in range(6):
        push(queue, f"a{i}", "a")
    served(queue, 4)
    for i in range(6):
        push(queue, f"b{i}", "b", now_ms=1.0)
    order = served(queue, 4)
    assert sorted(name[0] for name in order) == ["a", "a", "b", "b"]


def test_a_full_queue_refuses() -> None:
    queue = AdmissionQueue(2, 1e4)
    push(queue, "1")
    push(queue, "2")
    with pytest.raises(Unavailable) as caught:
        push(queue, "3")
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 1.0)
    assert len(queue) == 2


def test_a_higher_priority_displaces_the_youngest_of_the_lowest() -> None:
    queue = AdmissionQueue(2, 1e4)
    old, young = push(queue, "old", priority=20), push(queue, "young", priority=20)
    woken: list[str] = []
    young.wake = lambda: woken.append("young")
    push(queue, "urgent", priority=80)
    assert isinstance(young.outcome, RateLimited)
    assert (young.outcome.code, woken, old.outcome) == ("preempted", ["young"], None)
    assert served(queue, 2) == ["urgent", "old"]


def test_a_tenant_with_more_than_its_share_makes_room_and_is_told_429() -> None:
    queue = AdmissionQueue(4, 1e4)
    hog = [push(queue, f"hog{i}", "hog") for i in range(4)]
    push(queue, "other", "other")
    assert [isinstance(t.outcome, RateLimited) for t in hog] == [False, False, False, True]
    with pytest.raises(RateLimited):
        push(queue, "more", "hog")
    assert len(queue) == 4


def test_waiting_ends_at_the_deadline_or_the_timeout() -> None:
    queue = AdmissionQueue(10, 5_000.0)
    hurried = push(queue, "hurried", deadline_s=1.0)
    patient = push(queue, "patient")
    assert queue.expire(999.0) == []
    assert [type(error) for error in queue.expire(1_000.0)] == [DeadlineExceeded]
    assert isinstance(hurried.outcome, DeadlineExceeded)
    queue.expire(5_000.0)
    assert isinstance(patient.outcome, TriptychError)
    assert patient.outcome.code == "queue_timeout"
    assert len(queue) == 0
    assert (queue._lanes, queue._served, dict(queue._waiting)) == ({}, {}, {})


def test_who_names_no_model_can_still_leave_when_a_second_model_has_come() -> None:
    made = Master(MasterConfig(busy_requests=1, seed=1))
    made.register(InstanceInfo("d", "decode", "http://d:1", "m"), 0.0)
    assert isinstance(made.schedule(request("first"), 0.0), Placement)
    ticket = made.schedule(request("second"), 0.0)
    made.register(InstanceInfo("e", "decode", "http://e:1", "n"), 0.0)
    assert isinstance(ticket, Ticket) and made.waiting == 1
    made.cancel(ticket)
    assert made.waiting == 0
