"""The light histogram shows what Prometheus's own would."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from services.http.metrics import LightHistogram

BOUNDS = (0.005, 0.1, 1, 2.5, 40)


def lines(registry: CollectorRegistry) -> list[str]:
    return sorted(x for x in generate_latest(registry).decode().splitlines() if "created" not in x)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([*BOUNDS, 0.0, 0.05, 7.0, 99.0]))))
def test_it_shows_what_the_librarys_own_shows(values: list[tuple[str, float]]) -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram("x_seconds", "Some seconds.", BOUNDS, mine, ("stage",))
    heavy = Histogram("x_seconds", "Some seconds.", ["stage"], buckets=BOUNDS, registry=theirs)
    for label in "ab":
        heavy.labels(label)
        light.of(label)
    for label, value in values:
        light.of(label).observe(value)
        heavy.labels(label).observe(value)
    assert lines(mine) == lines(theirs)


def test_without_a_label() -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    LightHistogram("y", "Why.", BOUNDS, mine).of().observe(0.2)
    Histogram("y", "Why.", buckets=BOUNDS, registry=theirs).observe(0.2)
    assert lines(mine) == lines(theirs)
