"""Stages of traced requests, as looks at their work tell of them."""

from collections.abc import Collection

from services.engine.messages import Stage
from services.engine.scheduling.request_times import StageTimes


class Case:
    """Work by name; `stages` of it that are in progress."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0
        self.stages: dict[str, Collection[str]] = {}
        self.times: StageTimes[str] = StageTimes(lambda: self.now, self._stages_of)

    def _stages_of(self, work: str) -> Collection[str] | None:
        self.looks += 1
        return self.stages.get(work)

    def at(self, now: float, stages: dict[str, Collection[str]]) -> list[Stage]:
        self.now, self.stages = now, stages
        self.times.look()
        return self.times.take()


def test_a_stage_lasts_from_look_to_look_and_stages_overlap() -> None:
    case = Case()
    case.stages = {"w": ["queue", "transfer"]}
    case.times.watch("r", "w")
    assert case.at(1.0, {"w": ["transfer", "prefill"]}) == [Stage("r", "queue", 0.0, 1.0)]
    assert case.at(2.0, {"w": ["prefill"]}) == [Stage("r", "transfer", 0.0, 2.0)]
    assert case.at(3.0, {}) == [Stage("r", "prefill", 1.0, 3.0)]
    assert case.at(4.0, {"w": ["prefill"]}) == [], "work that has ended is not watched"


def test_two_requests_may_wait_for_the_same_work() -> None:
    case = Case()
    case.stages = {"w": ["encode"]}
    case.times.watch("one", "w")
    case.now = 1.0
    case.times.watch("two", "w")
    assert case.at(2.0, {}) == [Stage("one", "encode", 0.0, 2.0), Stage("two", "encode", 1.0, 2.0)]


def test_requests_that_are_not_traced_are_not_looked_at() -> None:
    case = Case()
    assert case.at(1.0, {"w": ["encode"]}) == [] and case.looks == 0


def test_what_is_traced_beyond_a_bound_is_not_looked_at() -> None:
    case = Case()
    for number in range(200):
        case.stages[f"w{number}"] = ["queue"]
        case.times.watch(f"r{number}", f"w{number}")
    assert case.looks == 64, "each looks at its own work alone"
    assert {stage.request_id for stage in case.at(1.0, {})} == {f"r{n}" for n in range(64)}
    case.stages = {"later": ["queue"]}
    case.times.watch("later", "later")
    assert case.at(2.0, {}) == [Stage("later", "queue", 1.0, 2.0)]
