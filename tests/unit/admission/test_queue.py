"""Who waits, who goes first, and who is told to come back."""

from typing import Any

import pytest

from protocol.errors import DeadlineExceeded, RateLimited, TriptychError, Unavailable
from services.admission.queue import AdmissionQueue, ServiceRate
from services.admission.ticket import Ticket

Queue = AdmissionQueue[str, str]
DONE = "done"


def push(
    queue: Queue, name: str, tenant: str = "", tokens: int = 100, *, now_ms: float = 0.0,
    **fields: Any,
) -> Ticket[str, str]:  # fmt: skip
    return queue.push(name, now_ms, 1.0, tenant=tenant, cost=tokens, **fields)


def served(queue: Queue, count: int) -> list[str]:
    names = []
    for _ in range(count):
        ticket = next(queue.in_order())
        queue.serve(ticket, 0.0)
        ticket.end(DONE)
        names.append(ticket.request)
    return names


def test_priority_goes_before_age() -> None:
    queue = Queue(10, 1e4)
    push(queue, "low", priority=10)
    push(queue, "usual")
    push(queue, "fifty", priority=50)
    push(queue, "high", priority=90)
    assert served(queue, 4) == ["high", "usual", "fifty", "low"]
    assert len(queue) == 0


def test_tenants_get_equal_tokens_however_many_requests_they_send() -> None:
    queue = Queue(100, 1e4)
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
    queue = Queue(100, 1e4)
    for i in range(6):
        push(queue, f"a{i}", "a")
    served(queue, 4)
    for i in range(6):
        push(queue, f"b{i}", "b", now_ms=1.0)
    order = served(queue, 4)
    assert sorted(name[0] for name in order) == ["a", "a", "b", "b"]


def test_a_full_queue_refuses() -> None:
    queue = Queue(2, 1e4)
    push(queue, "1")
    push(queue, "2")
    with pytest.raises(Unavailable) as caught:
        push(queue, "3")
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 1.0)
    assert len(queue) == 2


def test_a_higher_priority_displaces_the_youngest_of_the_lowest() -> None:
    queue = Queue(2, 1e4)
    old, young = push(queue, "old", priority=20), push(queue, "young", priority=20)
    woken: list[str] = []
    young.when_ended(lambda: woken.append("young"))
    push(queue, "urgent", priority=80)
    assert isinstance(young.outcome, RateLimited)
    assert (young.outcome.code, woken, old.outcome) == ("preempted", ["young"], None)
    assert served(queue, 2) == ["urgent", "old"]


def test_a_tenant_with_more_than_its_share_makes_room_and_is_told_429() -> None:
    queue = Queue(4, 1e4)
    hog = [push(queue, f"hog{i}", "hog") for i in range(4)]
    push(queue, "other", "other")
    assert [isinstance(t.outcome, RateLimited) for t in hog] == [False, False, False, True]
    with pytest.raises(RateLimited):
        push(queue, "more", "hog")
    assert len(queue) == 4


def test_waiting_ends_at_the_deadline_or_the_timeout() -> None:
    queue = Queue(10, 5_000.0)
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


def test_who_changes_its_name_with_every_request_gets_one_share() -> None:
    queue = Queue(500, 1e4)
    push(queue, "honest0", "honest")
    for i in range(200):
        push(queue, f"new{i}", f"name{i}", now_ms=i)
    served(queue, 40)  # those that look like tenants that have just come
    for i in range(40):
        push(queue, f"honest{i + 1}", "honest", now_ms=1e3)
        push(queue, f"late{i}", f"late{i}", now_ms=1e3)
    order = served(queue, 40)
    assert 18 <= sum(name.startswith("honest") for name in order) <= 22


def test_who_changes_its_name_cannot_fill_the_queue_for_others() -> None:
    queue = Queue(100, 1e4)
    for i in range(100):
        push(queue, f"new{i}", f"name{i}")
    for i in range(20):
        push(queue, f"honest{i}", "name0")
    assert sum(ticket.tenant == "name0" for ticket in tickets(queue)) == 21
    with pytest.raises(RateLimited):
        push(queue, "more", "another")


def test_names_are_not_remembered_for_ever() -> None:
    queue = Queue(10, 1e4)
    push(queue, "stays", "stays", priority=1)
    for i in range(5_000):
        push(queue, f"r{i}", f"name{i}")
        served(queue, 1)
    assert len(queue) == 1
    assert len(queue._served) < 1100


def test_a_tenant_that_has_been_served_has_a_lane_of_its_own() -> None:
    queue = Queue(500, 1e4)
    for i in range(60):
        push(queue, f"new{i}", f"name{i}")
    push(queue, "late", "late")
    while "late" not in served(queue, 1):
        push(queue, f"more{len(queue)}", f"{id(queue)}{len(queue)}")
    for i in range(50):
        push(queue, f"again{i}", "late", now_ms=1.0)
        push(queue, f"other{i}", f"other{i}", now_ms=1.0)
    order = served(queue, 30)
    assert 12 <= sum(name.startswith("again") for name in order) <= 18


def tickets(queue: Queue) -> list[Ticket[str, str]]:
    return [t for lanes in queue._lanes.values() for lane in lanes.values() for t in lane]


def test_a_request_of_any_kind_waits() -> None:
    queue: AdmissionQueue[object, int] = AdmissionQueue(1, 1e4)
    what = object()
    ticket = queue.push(what, 5.0, 1.0, deadline_s=2.0)
    assert (ticket.request, ticket.since, ticket.until) == (what, 5.0, 2005.0)
    queue.serve(ticket, 6.0)
    ticket.end(3)
    assert ticket.outcome == 3 and not len(queue)


def test_who_looks_late_at_a_ticket_that_has_ended_is_told_at_once() -> None:
    queue = Queue(2, 1e4)
    ticket = push(queue, "a")
    told: list[str] = []
    ticket.when_ended(lambda: told.append("early"))
    queue.serve(ticket, 1.0)
    ticket.end("served")
    assert told == ["early"]
    ticket.when_ended(lambda: told.append("late"))
    assert told == ["early", "late"]


@pytest.mark.parametrize("burst", [1, 4, 16])
def test_bursts_are_no_haste(burst: int) -> None:
    """Ten a second, so many at a time."""
    rate, now = ServiceRate(), 0.0
    assert rate.wait(5) == 0.0
    rate.begin(now)
    found = []
    for _ in range(200 // burst):
        now += burst / 10
        for _ in range(burst):
            rate.leave(now)
            found.append(rate.wait(10))
    assert min(found[len(found) // 2 :]) > 0.8 and max(found[len(found) // 2 :]) < 1.3


def test_a_changed_rate_is_learnt() -> None:
    rate = ServiceRate()
    for number in range(300):
        rate.leave(float(number))
    for number in range(300):
        rate.leave(300.0 + number * 0.1)
    assert rate.wait(1) == pytest.approx(0.1, rel=0.1)


def test_a_queue_takes_what_is_served_in_time_and_always_one() -> None:
    queue: AdmissionQueue[str, str] = AdmissionQueue(100, 1e6, wait_ms=1000.0)
    for number in range(3):
        queue.push(f"r{number}", 0.0, 1.0)
    for now_ms in (500.0, 1000.0, 1500.0):
        queue.serve(next(queue.in_order()), now_ms)
    for number in range(2):
        queue.push(f"s{number}", 1500.0, 1.0)
    with pytest.raises(Unavailable) as caught:
        queue.push("t", 1500.0, 1.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", pytest.approx(1.5))
    assert len(queue) == 2
