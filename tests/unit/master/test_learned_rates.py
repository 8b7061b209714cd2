"""Rates of workers that measure nothing, learnt from calls on virtual time with known ones."""

import random

import pytest

from services.master.fleet.learned_rates import Concurrency, LineFit, RateLearner, learner

BASE_MS, TOKEN_MS = 8.0, 0.25


def new() -> RateLearner:
    return learner(1.0, 20.0, 0.4)


def queue(
    load: float, noise: float, seed: int, wrong: float = 0.0, calls: int = 400
) -> RateLearner:
    """One worker that does one thing after the other; what it is told holds the wait of each."""
    rng, made, free = random.Random(seed), new(), 0.0
    at = 0.0
    for _ in range(calls):
        tokens = rng.choice([100, 400, 1600, 3000])
        took = TOKEN_MS * tokens * (1.0 + noise * (2.0 * rng.random() - 1.0))
        at += rng.expovariate(1.0) * (TOKEN_MS * 1275) / load
        idle = free < at
        free = max(free, at) + took + (BASE_MS if idle else 0.0)
        elapsed = free - at
        if rng.random() < wrong:
            elapsed *= rng.choice([0.0, 1e-3, 100.0, 1e6])
        made.computed(elapsed, tokens, free)
    return made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", [0.2, 0.7, 1.5])
def test_computing_is_learnt_idle_busy_and_overloaded(load: float, seed: int) -> None:
    base, token_ms = queue(load, 0.0, seed).computing.fit.solve()
    assert token_ms == pytest.approx(TOKEN_MS, rel=0.12)
    assert 0.0 <= base < 40.0, "what an idle worker takes on top"


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_wrong_reports_cost_little(seed: int) -> None:
    noisy = queue(0.7, 0.3, seed).computing.fit.solve()[1]
    assert noisy == pytest.approx(TOKEN_MS, rel=0.25)
    lied_to = queue(0.7, 0.1, seed, wrong=0.03).computing.fit.solve()[1]
    assert TOKEN_MS / 2.5 < lied_to < TOKEN_MS * 2.5


def test_a_worker_that_becomes_slower_is_learnt_anew() -> None:
    made = queue(0.5, 0.0, 1)
    now = 1e9
    for _ in range(150):
        made.computed(1000 * 4 * TOKEN_MS, 1000, now)
        now += 10_000.0
    assert made.computing.fit.solve()[1] == pytest.approx(4 * TOKEN_MS, rel=0.15)


def decoding(noise: float, seed: int, crowds: list[int]) -> RateLearner:
    rng, made = random.Random(seed), new()
    for _ in range(200):
        requests = rng.choice(crowds)
        step = 12.0 + 0.8 * requests
        made.decoded(step * (1.0 + noise * (2.0 * rng.random() - 1.0)), requests, 50)
    return made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("noise", "within"), [(0.0, 0.05), (0.2, 0.15)])
def test_steps_are_learnt(noise: float, within: float, seed: int) -> None:
    base, each = decoding(noise, seed, [1, 4, 8, 16, 32]).steps.solve()
    for requests in (1, 8, 32):
        assert base + each * requests == pytest.approx(12.0 + 0.8 * requests, rel=within)


def test_a_crowd_that_never_changes_does_not_make_up_a_slope() -> None:
    base, each = decoding(0.1, 3, [8]).steps.solve()
    assert base + 8 * each == pytest.approx(12.0 + 0.8 * 8, rel=0.1)
    assert base > 0.0 and 0.0 < each < 3.0, "told apart by the prior"


def test_what_one_more_costs_is_known_after_a_crowd_of_one_size() -> None:
    made = decoding(0.05, 4, [1, 4, 8, 16, 32])
    for number in range(400):
        made.decoded((12.0 + 0.8 * 20) * (1.02 if number % 2 else 0.98), 20, 50)
    base, each = made.steps.solve()
    assert base + 26 * each == pytest.approx(12.0 + 0.8 * 26, rel=0.03)


def test_nothing_heard_is_the_prior() -> None:
    base, each = new().steps.solve()
    assert (base, each) == (pytest.approx(20.0), pytest.approx(0.4))
    assert new().computing.fit.solve()[1] == pytest.approx(1.0, rel=0.05)


def test_what_is_expected_once_more_is_no_news() -> None:
    """A tenth off is: the rates of like workers have changed."""
    fit = LineFit(1.0, 1.0, 10.0)
    for base, slope in ((20.0, 0.4), (20.0, 0.0), (0.0, 0.4)):
        assert fit.expect(base, slope)
        assert not fit.expect(base, slope)
    assert fit.expect(20.0, 0.4) and fit.expect(20.0, 0.44) and fit.expect(22.0, 0.44)


@pytest.mark.parametrize("values", [(0.0, 5.0), (-1.0, 5.0), (5.0, 0.0), (5.0, float("nan")),
                                    (float("inf"), 5.0), (5.0, float("inf"))])  # fmt: skip
def test_what_cannot_be_is_not_counted(values: tuple[float, float]) -> None:
    fit = LineFit(1.0, 1.0, 10.0)
    fit.add(1.0, *values)
    assert fit.solve() == LineFit(1.0, 1.0, 10.0).solve() or values[0] == float("inf")
    made = new()
    made.computed(float("nan"), 100, 5.0)
    made.computed(1e12, 100, 5.0)
    made.decoded(1e12, 3, 50)
    made.decoded(10.0, 3, 1)
    assert (made.computing.fit.weight, made.steps.weight) == (0.0, 0.0)


def test_requests_at_once_are_counted_over_time() -> None:
    crowd = Concurrency()
    start = crowd.change(1, 100.0)
    crowd.change(1, 200.0)
    crowd.change(-1, 300.0)
    assert (crowd.change(-1, 400.0) - start) / 300.0 == pytest.approx(4 / 3)
    assert crowd.change(-1, 500.0) == crowd.until(900.0), "never below none"
