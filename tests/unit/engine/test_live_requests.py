"""Deadlines of requests, and what becomes of those of requests that have ended."""

from services.engine.scheduling.live_requests import _SPARE, Deadlines


class Case:
    """Requests by name, each with its number."""

    def __init__(self) -> None:
        self.alive: dict[str, int] = {}
        self.deadlines = Deadlines(
            lambda name, number: self.alive.get(name) == number, lambda: len(self.alive)
        )

    def add(self, name: str, number: int, time: float) -> None:
        self.alive[name] = number
        self.deadlines.add(time, number, name)


def test_the_next_time_is_that_of_the_earliest_which_is_alive() -> None:
    case = Case()
    assert case.deadlines.next_time is None
    for number, (name, time) in enumerate((("late", 9.0), ("soon", 3.0), ("middle", 5.0))):
        case.add(name, number, time)
    for _ in range(2):
        assert case.deadlines.next_time == 3.0
    del case.alive["soon"]
    assert case.deadlines.next_time == 5.0 and len(case.deadlines) == 2
    assert case.deadlines.due(8.0) == ["middle"]
    case.alive.clear()
    assert case.deadlines.next_time is None and len(case.deadlines) == 0


def test_a_name_that_is_used_again_has_the_deadline_of_the_new_request() -> None:
    case = Case()
    case.add("r", 1, 3.0)
    case.add("r", 2, 7.0)
    assert case.deadlines.due(5.0) == []
    assert case.deadlines.next_time == 7.0
    assert case.deadlines.due(7.0) == ["r"]


def test_what_has_ended_long_before_its_deadline_takes_no_memory() -> None:
    case = Case()
    for number in range(10 * _SPARE):
        case.add("r", number, 600.0 + number)
        assert len(case.deadlines) <= 2 + _SPARE
