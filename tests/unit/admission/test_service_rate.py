"""How fast a queue moves, and what is refused by it."""

import pytest

from protocol.errors import Unavailable
from services.admission.queue import AdmissionQueue, ServiceRate


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
