"""Stages of traced requests, as looks at their work tell of them."""

from collections.abc import Collection

from services.engine.messages import Stage
from services.engine.scheduling.request_times import StageTimes
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import engine, request_of


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


def test_an_engine_tells_of_its_encoders_stages_and_of_its_steps(model_dir: ModelDir) -> None:
    """Of traced requests alone, and each stage once."""
    model = model_dir("qwen2_5_vl")
    worker = engine(model)
    assert worker.encode is not None and worker.generate is not None
    try:
        ended, told = set[str](), list[Stage]()
        for name, traced in (("seen", True), ("unseen", False)):
            generate, encode = request_of(
                model, asking(picture(1), name), name, max_tokens=3, ignore_eos=True
            )
            worker.encode.add(encode)
            worker.generate.add(generate)
            if traced:
                worker.encode.trace(name)
                worker.generate.trace(name)
        while len(ended) < 2:
            outputs, _ = worker.step()
            ended |= {output.request_id for output in outputs if output.finish_reason}
            told += worker.stages()
    finally:
        worker.close()
    assert {stage.request_id for stage in told} == {"seen"}
    names = [stage.name for stage in told]
    assert {"encode", "prefill", "decode"} <= set(names)
    # It waits for its picture's turn, and for its own.
    assert len(names) == len(set(names)) + (names.count("queue") == 2), names
    assert all(stage.start <= stage.end for stage in told)
