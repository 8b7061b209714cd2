"""How long a simulated run is measured."""

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.prompts import Prompt
from benchmarks.simulate.records import Record, Span
from benchmarks.simulate.run_length import RunLength


def measured_s(long_from: int, lifetime_s: float, span: Span) -> float:
    """Of a run in which a request comes every 0.1 s: up to a number they end at once."""
    clock, records = Clock(), list[Record]()

    def arrive(number: int) -> None:
        record = Record(Prompt(64).request(str(number), 0, 2, "", 0.0), clock.now)
        records.append(record)
        lives = lifetime_s if number >= long_from else 0.05
        clock.after(lives, lambda: setattr(record, "last", clock.now))
        clock.after(0.1, arrive, number + 1)

    clock.at(0.0, arrive, 0)
    return RunLength(clock, records, span).run()


def test_a_run_is_measured_for_longer_where_requests_live_longer_than_it_seemed() -> None:
    """After 10 s the median has lived for 0.5 s so far, of the 6 s that the later ones live."""
    assert measured_s(1_000_000, 6.0, Span(0.0, 10.0)) == 10.0
    assert 60.0 <= measured_s(45, 6.0, Span(0.0, 10.0)) < 80.0


def test_no_run_is_measured_for_longer_than_it_may_be() -> None:
    assert measured_s(0, 20.0, Span(0.0, 10.0, most_s=30.0)) == 30.0
    assert measured_s(45, 20.0, Span(0.0, 10.0, most_s=20.0)) == 20.0
    assert RunLength(Clock(), [], Span(1.0, 10.0)).run() == 11.0, "nothing arrives"


def test_a_hopeless_run_is_left() -> None:
    """All are lost half a second after they came."""
    clock, records = Clock(), list[Record]()

    def arrive(number: int) -> None:
        request = Prompt(64).request(str(number), 0, 2, "", 0.0)
        records.append(Record(request, clock.now, aims=(0.5, 0.5)))
        clock.after(0.1, arrive, number + 1)

    clock.at(0.0, arrive, 0)
    assert RunLength(clock, records, Span(0.0, 20.0, hopeless=0.5)).run() == 10.0
