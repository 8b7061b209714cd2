"""Requests that wait at the master."""

from protocol.registry import InstanceInfo, Placement, ScheduleRequest
from services.admission.ticket import Ticket
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.waiting import PlacementQueue, enqueue, remaining


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


def test_what_is_left_of_a_deadline_shrinks_while_a_request_waits() -> None:
    queue = PlacementQueue(10, 1e4)
    asked = ScheduleRequest("r", 10, deadline_s=3.0, tenant="t", priority=0)
    ticket = enqueue(queue, asked, 1_000.0, 1.0, 1.0)
    assert remaining(ticket, 2_500.0).deadline_s == 1.5
    assert (ticket.tenant, ticket.priority, ticket.cost, ticket.until) == ("t", 50, 10, 4_000.0)
    patient = enqueue(queue, ScheduleRequest("p", 10), 0.0, 1.0, 1.0)
    assert remaining(patient, 9e3) is patient.request
