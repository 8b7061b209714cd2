"""Leases: a late word about an earlier one of the same key is told apart."""

from connectors.leases import LeaseTable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def table() -> tuple[LeaseTable[str], Clock]:
    clock = Clock()
    return LeaseTable(10.0, clock), clock


def test_only_the_generation_that_is_there_is_held() -> None:
    leases, _ = table()
    first = leases.grant("r")
    assert leases.holds("r", first)
    second = leases.grant("r")
    assert leases.holds("r", second) and not leases.holds("r", first)
    assert leases.generation("r") == second != first
    assert not leases.holds("other", second)


def test_a_lease_lapses_at_its_deadline_and_not_before() -> None:
    leases, clock = table()
    leases.grant("r")
    clock.now = 9.0
    assert leases.expire() == [] and "r" in leases
    clock.now = 10.0
    assert leases.expire() == ["r"]
    assert (leases.expired, len(leases), leases.keys()) == (1, 0, [])
    assert leases.release("r") is False


def test_renewing_puts_the_deadline_off_by_a_whole_lease() -> None:
    leases, clock = table()
    leases.grant("r")
    clock.now = 9.0
    assert leases.renew("r") and leases.renew("other") is False
    clock.now = 18.0
    assert leases.expire() == []
    clock.now = 19.0
    assert leases.expire() == ["r"]


def test_one_that_does_not_lapse_does_once_its_clock_is_started() -> None:
    leases, clock = table()
    leases.grant("r", lapses=False)
    clock.now = 100.0
    assert leases.renew("r") and leases.expire() == []
    leases.start_clock("r")
    clock.now = 105.0
    leases.start_clock("r")  # runs already
    leases.start_clock("other")
    clock.now = 109.0
    assert leases.expire() == []
    clock.now = 110.0
    assert leases.expire() == ["r"]
    leases.grant("r")
    assert leases.release("r") and "r" not in leases
