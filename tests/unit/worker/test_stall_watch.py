"""When an engine counts as stalled: by its beats, on a clock of the tests' own."""

from services.engine.pulse import StepClock
from services.worker.stall_watch import StallBounds, StallJudge

TICK_S = 0.25


class Engine:
    """Steps, and beats of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = StepClock(lambda: self.now)

    def step(self, seconds: float) -> None:
        self.steps.begin()
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
            engine.steps.begin()
        assert judged(judge, engine, 20.0, beating=True) == [""]
        assert judged(judge, engine, 2.75, beating=False) == [""]
        ok, stall = judged(judge, engine, 5.0, beating=False)
        assert not ok and "its process does not run" in stall
        assert judged(judge, engine, 0.25, beating=True)[-1] == ""


def test_a_long_step_is_no_stall_until_it_is_much_longer_than_any() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0))
    engine.steps.begin()
    assert judged(judge, engine, 100.0, beating=True) == [""]
    assert "a step does not end" in judged(judge, engine, 30.0, beating=True)[-1]
    engine.steps.end()
    assert judged(judge, engine, 1.0, beating=True)[-1] == ""
    engine.steps.begin()
    assert judged(judge, engine, 4 * 130.0 - 1, beating=True) == [""]
    assert judged(judge, engine, 5.0, beating=True)[-1]


def test_a_bound_for_steps_holds_whatever_was_seen() -> None:
    engine, judge = Engine(), StallJudge(StallBounds(3.0, 10.0))
    engine.step(9.0)
    engine.steps.begin()
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
