"""When an engine counts as stalled: by its beats, on a clock of the tests' own."""

from services.engine.pulse import StepClock
from services.engine.scheduling.chunks import StepSizes
from services.worker.stall_watch import StallBounds, StallJudge

TICK_S = 0.25


class Engine:
    """Steps, and beats of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sizes = StepSizes()
        self.steps = StepClock(self.sizes, lambda: self.now)

    def begin(self, tokens: int = 1) -> None:
        self.steps.begin()
        self.sizes.does({"tokens": tokens})

    def step(self, seconds: float, tokens: int = 1) -> None:
        self.begin(tokens)
        self.now += seconds
        self.steps.end()


def judged(judge: StallJudge, engine: Engine, seconds: float, *, beating: bool) -> list[str]:
    """What is said, tick after tick, without what stays the same."""
    said = [judge.stall]
    for _ in range(round(seconds / TICK_S)):
        engine.now += TICK_S
        if beating:
            judge.heard(engine.steps.progress())
        else:
            judge.waited(TICK_S)
        if bool(judge.stall) != bool(said[-1]):
            said.append(judge.stall)
    return said


def test_an_engine_that_was_never_heard_is_not_judged() -> None:
    assert judged(StallJudge(StallBounds(1.0)), Engine(), 100.0, beating=False) == [""]


def test_a_silent_engine_stalls_whether_or_not_it_has_work_and_comes_back() -> None:
    for busy in (False, True):
        engine, judge = Engine(), StallJudge(StallBounds(3.0))
        if busy:
            engine.begin()
        assert judged(judge, engine, 20.0, beating=True) == [""]
        assert judged(judge, engine, 2.75, beating=False) == [""]
        ok, stall = judged(judge, engine, 5.0, beating=False)
        assert not ok and "its process does not run" in stall
        assert judged(judge, engine, 0.25, beating=True)[-1] == ""


def test_a_step_as_any_other_stalls_at_twice_the_longest() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0))
    engine.step(0.1, tokens=100)
    engine.begin(tokens=124)
    assert judged(judge, engine, 9.5, beating=True) == [""]
    assert "a step does not end" in judged(judge, engine, 1.0, beating=True)[-1]
    engine.steps.end()
    assert judged(judge, engine, 1.0, beating=True)[-1] == ""
    engine.step(50.0, tokens=124)
    engine.begin(tokens=90)
    assert judged(judge, engine, 99.0, beating=True) == [""]
    assert judged(judge, engine, 2.0, beating=True)[-1]


def test_a_step_that_does_more_than_any_may_take_long() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0))
    engine.begin(tokens=100)
    assert judged(judge, engine, 100.0, beating=True) == [""]
    assert "a step does not end" in judged(judge, engine, 30.0, beating=True)[-1]
    engine.steps.end()
    assert judged(judge, engine, 1.0, beating=True)[-1] == ""
    engine.begin(tokens=200)
    assert judged(judge, engine, 4 * 130.0 - 1, beating=True) == [""]
    assert judged(judge, engine, 5.0, beating=True)[-1]


def test_work_of_another_kind_may_take_long_once() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0))
    engine.step(0.1)
    for others, stall in (({"grammars": 1}, False), ({"grammars": 1}, True), ({}, True)):
        engine.begin()
        engine.sizes.does(others)
        assert bool(judged(judge, engine, 20.0, beating=True)[-1]) is stall
        engine.sizes.end()  # not the clock: this step's time is not to count
    engine.steps.begin()
    engine.sizes.does_else()
    assert judged(judge, engine, 20.0, beating=True)[-1] == ""


def test_a_bound_for_steps_holds_at_any_size() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0, 10.0))
    engine.step(9.0)
    engine.begin(tokens=1000)
    assert judged(judge, engine, 9.75, beating=True) == [""]
    assert judged(judge, engine, 1.0, beating=True)[-1]


def test_progress_says_how_many_steps_since_when_and_how_long() -> None:
    engine = Engine()
    engine.step(2.0)
    engine.step(1.0)
    engine.now += 5.0
    seen = engine.steps.progress()
    assert (seen.steps, seen.step_s, seen.idle_s, seen.longest_step_s) == (2, 0.0, 5.0, 2.0)
    engine.steps.begin()
    engine.now += 0.5
    assert (engine.steps.progress().step_s, engine.steps.progress().idle_s) == (0.5, 0.0)


def test_a_step_that_passes_while_progress_is_read_makes_no_time_negative() -> None:
    now, passing = 5.0, True

    def clock() -> float:
        nonlocal now, passing
        read = now
        if reading and passing:
            passing = False
            steps.begin()
            now += 1.0
            steps.end()
        return read

    reading = False
    steps = StepClock(clock=clock)
    reading = True
    seen = steps.progress()
    assert (seen.steps, seen.step_s, seen.idle_s) == (1, 0.0, 0.0)
