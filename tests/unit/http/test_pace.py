"""How fast a queue moves, and what is refused by it."""

import pytest

from protocol.errors import Unavailable
from protocol.registry import InstanceInfo, Placement, ScheduleRequest
from services.http.pace import Pace
from services.master.config import MasterConfig
from services.master.master import Master
from services.master.placement.admission import AdmissionQueue, Ticket


@pytest.mark.parametrize("burst", [1, 4, 16])
def test_bursts_are_no_haste(burst: int) -> None:
    """Ten a second, so many at a time."""
    pace, now = Pace(), 0.0
    assert pace.wait(5) == 0.0
    pace.begin(now)
    found = []
    for _ in range(200 // burst):
        now += burst / 10
        for _ in range(burst):
            pace.leave(now)
            found.append(pace.wait(10))
    assert min(found[len(found) // 2 :]) > 0.8 and max(found[len(found) // 2 :]) < 1.3


def test_a_changed_pace_is_learnt() -> None:
    pace = Pace()
    for number in range(300):
        pace.leave(float(number))
    for number in range(300):
        pace.leave(300.0 + number * 0.1)
    assert pace.wait(1) == pytest.approx(0.1, rel=0.1)


def test_a_queue_takes_what_is_served_in_time_and_always_one() -> None:
    queue = AdmissionQueue(100, 1e6, wait_ms=1000.0)
    for number in range(3):
        queue.push(ScheduleRequest(f"r{number}", 10), 0.0, 1.0)
    for now_ms in (500.0, 1000.0, 1500.0):
        queue.serve(next(queue.in_order()), now_ms)
    for number in range(2):
        queue.push(ScheduleRequest(f"s{number}", 10), 1500.0, 1.0)
    with pytest.raises(Unavailable) as caught:
        queue.push(ScheduleRequest("t", 10), 1500.0, 1.0)
    assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", pytest.approx(1.5))
    assert len(queue) == 2


def test_a_worker_that_decodes_is_busy_at_twice_what_it_runs() -> None:
    master = Master(MasterConfig(seed=1))
    master.register(InstanceInfo("d", "pdfusion", "http://d:1", model="m", max_running=3), 0.0)
    placed = [master.schedule(ScheduleRequest(f"r{n}", 10, model="m"), 0.0) for n in range(8)]
    assert [type(one) for one in placed] == [Placement] * 6 + [Ticket] * 2
