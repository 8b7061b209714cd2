"""How many tokens are guessed: as many as raise the tokens a second, on a clock of the test's own,
whose steps take what the test says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

import pytest

from services.engine.scheduling.chunks import Work
from services.engine.scheduling.draft_budget import DraftBudget
from services.engine.scheduling.limits import Limits
from services.engine.scheduling.request import Request
from tests.support.scheduler_cases import Case
from tests.support.thinned import thinned

MOST = 4
Seconds = Callable[[int, int], float]


def memory_bound(decoding: int, guessed: int) -> float:
    """A guess costs little, as on a GPU or with one request on a CPU."""
    return 0.050 + 0.001 * decoding + 0.001 * guessed


def between(decoding: int, guessed: int) -> float:
    """A guess costs a third of the token of another request."""
    return 0.010 + 0.010 * decoding + 0.004 * guessed


def busy(decoding: int, guessed: int) -> float:
    """A guess costs nearly as much as the token of another request."""
    return 0.010 + 0.010 * decoding + 0.010 * guessed


def dear(decoding: int, guessed: int) -> float:
    """A draft model costs as much as the model that it guesses for."""
    return 0.010 + 0.010 * decoding + 0.030 * guessed


@dataclass
class Engine:
    """Requests whose guesses are right by chance, in steps of `seconds`."""

    seconds: Seconds
    budget: DraftBudget
    random: Random = field(default_factory=lambda: Random(1))
    guessed: dict[int, int] = field(default_factory=dict)  # by request, in all
    tokens: int = 0
    time: float = 0.0

    def step(self, requests: Sequence[Request], chances: Sequence[float], slower: float = 1) -> int:
        """Returns how many tokens were guessed."""
        counts = self.budget.of_step(requests, len(requests))
        for place, (request, count) in enumerate(zip(requests, counts, strict=True)):
            right = 0
            while right < count and self.random.random() < chances[place]:
                right += 1
            self.tokens += 1 + right
            self.guessed[place] = self.guessed.get(place, 0) + count
            if count:
                self.budget.checked(request, count, right)
        took = slower * self.seconds(len(requests), sum(counts))
        self.budget.took(Work(requests=len(requests)), took)
        self.time += took
        return sum(counts)

    @property
    def rate(self) -> float:
        return self.tokens / self.time


def requests_of(count: int) -> list[Request]:
    case = Case(Limits(64, 4096))
    return [case.add(8) for _ in range(count)]


def rate(
    seconds: Seconds, chances: Sequence[float], *, steps: int = 2000, most: int = MOST,
    adaptive: bool = True,
) -> float:  # fmt: skip
    """Tokens a second of requests with these chances."""
    engine = Engine(seconds, DraftBudget(most, 64, adaptive=adaptive))
    requests = requests_of(len(chances))
    for _ in range(steps):
        engine.step(requests, chances)
    return engine.rate


CHANCES = (0.0, 0.05, 0.3, 0.6, 0.9, 1.0)
COSTS = (memory_bound, between, busy, dear)


@pytest.mark.parametrize(
    ("seconds", "chance", "count"),
    thinned(
        product(COSTS, CHANCES, (1, 8)),
        # Each two of these values meet.
        lambda seconds, chance, count: (
            (COSTS.index(seconds) + CHANCES.index(chance)) % 2 == (count == 8)
        ),
    ),
)
def test_it_is_about_as_fast_as_the_better_of_all_guesses_and_none(
    seconds: Seconds, chance: float, count: int
) -> None:
    chances = [chance] * count
    none = rate(seconds, chances, steps=10, most=0, adaptive=False)  # all take as long
    every = rate(seconds, chances, adaptive=False)
    assert rate(seconds, chances) > 0.95 * max(none, every)


def test_requests_that_are_easy_to_guess_are_guessed_beside_others() -> None:
    chances = [0.9] * 4 + [0.02] * 4
    none = rate(between, chances, most=0, adaptive=False)
    every = rate(between, chances, adaptive=False)
    assert rate(between, chances) > 1.1 * max(none, every)


def test_what_becomes_easy_is_guessed_again_and_what_becomes_hard_no_more() -> None:
    engine, requests = Engine(between, DraftBudget(MOST, 64)), requests_of(8)

    def guesses(chance: float) -> float:
        """A step has, on average, once it is known how right they are."""
        for _ in range(400):
            engine.step(requests, [chance] * 8)
        return sum(engine.step(requests, [chance] * 8) for _ in range(100)) / 100

    assert guesses(0.02) < 1
    assert guesses(0.98) > 16
    assert guesses(0.02) < 1


def test_the_price_is_that_of_as_many_requests_as_decode() -> None:
    """The same guesses pay for one request, and not for forty."""

    def seconds(decoding: int, guessed: int) -> float:
        return 0.050 + 0.002 * max(0, decoding + guessed - 16)

    engine, requests = Engine(seconds, DraftBudget(MOST, 64)), requests_of(40)
    for _ in range(300):
        engine.step(requests[:1], [0.5])
    assert engine.guessed[0] > 300
    engine.guessed.clear()
    for _ in range(300):
        engine.step(requests, [0.5] * 40)
    assert sum(engine.guessed.values()) < 0.3 * 300 * 40


@pytest.mark.parametrize("times", [0.1, 8])
def test_other_contexts_are_other_steps(times: float) -> None:
    """As long as steps of the former contexts are remembered, a guess looks dear or free."""
    engine, requests = Engine(memory_bound, DraftBudget(MOST, 64)), requests_of(1)
    for _ in range(300):
        engine.step(requests, [0.9])
    for _ in range(200):
        engine.step(requests, [0.9], slower=times)
    engine.guessed.clear()
    for _ in range(100):
        engine.step(requests, [0.9], slower=times)
    assert engine.guessed[0] > 350


def test_steps_that_something_held_up_do_not_count() -> None:
    engine, requests = Engine(memory_bound, DraftBudget(MOST, 64)), requests_of(1)
    for number in range(400):
        engine.step(requests, [0.9], slower=20 if number % 7 == 3 else 1)
    assert engine.guessed[0] > 0.85 * 400 * 3


def test_a_step_with_prompts_says_nothing_of_guesses() -> None:
    budget, (request,) = DraftBudget(MOST, 64), requests_of(1)
    for _ in range(5):
        assert budget.of_step([request], 1) == [0], "steps without guesses were not measured yet"
        budget.took(Work(computed=512, requests=1), 2.0)
    for _ in range(2):
        budget.of_step([request], 1)
        budget.took(Work(requests=1), 0.05)
    assert budget.of_step([request], 1) == [MOST]


def test_none_are_guessed_if_too_many_requests_decode() -> None:
    for adaptive in (True, False):
        budget, requests = DraftBudget(MOST, 2, adaptive=adaptive), requests_of(3)
        assert budget.of_step(requests, 3) == [0, 0, 0]
        budget.took(Work(requests=3), 0.05)
        assert budget.of_step(requests, 3) == [0, 0, 0]
    assert budget.of_step(requests[:2], 2) == [MOST, MOST]


def test_a_clock_that_stands_still_does_no_harm() -> None:
    budget, (request,) = DraftBudget(MOST, 64), requests_of(1)
    for _ in range(100):
        counts = budget.of_step([request], 1)
        if counts[0]:
            budget.checked(request, counts[0], 1)
        budget.took(Work(requests=1), 0.0)
    assert counts[0] <= MOST


def test_a_step_in_which_a_draft_model_only_catches_up_is_not_one_without_guesses() -> None:
    """It took longer, though nothing was guessed in it."""
    budget, (request,) = DraftBudget(MOST, 64), requests_of(1)
    for _ in range(2):
        budget.of_step([request], 1)
        budget.took(Work(requests=1), 0.05)
    for _ in range(10):  # a long prompt that another worker has computed
        assert budget.of_step([request], 1) == [MOST]
        budget.took(Work(requests=1), 5.0)
    for _ in range(3):
        assert budget.of_step([request], 1) == [MOST]
        budget.checked(request, MOST, 0)
        budget.took(Work(requests=1), 0.25)
    # Each guess takes as long as a step, and none was right: at most one is made, as a probe.
    assert budget.of_step([request], 1) <= [1]
