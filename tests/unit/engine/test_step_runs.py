"""Decode steps that run in a row give the tokens of steps that run one at a time, also when
requests arrive, end, fail or are aborted between them. `Rerun` stands in for CUDA graphs."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from services.engine import parts
from services.engine.engine import Engine
from services.engine.model.decode_steps import DecodeSteps
from services.engine.sampling.sampler import Sampler
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking
from tests.support.engines import engine, request_of, run
from tests.support.replayed_steps import Rerun, use

Tokens = dict[tuple[str, int], list[int]]
OPTIONS: dict[str, Any] = {"max_num_seqs": 8, "block_size": 4, "num_blocks": 400}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_p": 0.9},
    "penalized": {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "logprobs": {"temperature": 0.0, "logprobs": 2},
    "grammar": {"temperature": 0.0, "grammar": "start: /[a-z]{5,40}/"},
}


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Engines record decode steps; the number of rows of each run that they make."""
    use(monkeypatch, Rerun())
    made: list[int] = []
    init = DecodeSteps.__init__

    def noted(self: DecodeSteps, *args: Any) -> None:
        init(self, *args)
        made.append(len(self.requests))

    monkeypatch.setattr(DecodeSteps, "__init__", noted)
    yield made


def served(path: Any, count: int, **sampling: Any) -> Tokens:
    worker = engine(path, **OPTIONS)
    values = [{"max_tokens": 9 + 5 * i, "seed": i, **sampling} for i in range(count)]
    requests = [request_of(path, asking(f"{i} {LONG}"), f"r{i}", **v) for i, v in enumerate(values)]
    tokens = run(worker, requests)
    assert worker.check_integrity() == []
    worker.close()
    return tokens


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_tokens_are_those_of_single_steps(
    way: dict[str, Any],
    model_dir: ModelDir,
    monkeypatch: pytest.MonkeyPatch,
    runs: list[int],
) -> None:
    path = model_dir("qwen2_5_vl")
    tokens = served(path, 5, **way)
    assert len(runs) > 3
    steps = len(runs)
    monkeypatch.setattr(parts, "_DECODE_STEPS", 1)
    assert served(path, 5, **way) == tokens
    assert len(runs) == steps


def test_who_comes_takes_part_from_the_next_step_on(model_dir: ModelDir, runs: list[int]) -> None:
    path = model_dir("qwen3")
    alone = served(path, 1, max_tokens=40, ignore_eos=True)
    worker = engine(path, **OPTIONS)
    first, _ = request_of(path, asking(f"0 {LONG}"), "r0", max_tokens=40, ignore_eos=True, seed=0)
    second, _ = request_of(path, asking("Hello"), "r1", max_tokens=3, ignore_eos=True)
    worker.add(first)
    told: Tokens = {}
    step = 0
    while len(told.get(("r0", 0), [])) < 40:
        assert step < 100
        if step == 6:
            assert _under_way(worker)
            worker.add(second)
        for output in worker.step()[0]:
            told.setdefault((output.request_id, output.index), []).extend(output.token_ids)
        if step == 8:
            assert ("r1", 0) in told, "it was computed in the step after the one that was launched"
        step += 1
    assert told["r0", 0] == alone["r0", 0]
    assert len(told["r1", 0]) == 3
    assert worker.check_integrity() == []


def _under_way(worker: Engine) -> bool:
    assert worker.generate is not None
    return worker.generate._runs.under_way


def test_who_is_aborted_gains_nothing_more_and_leaves_the_others_alone(
    model_dir: ModelDir, runs: list[int]
) -> None:
    path = model_dir("qwen3")
    sampling = {"max_tokens": 30, "ignore_eos": True}
    expected = served(path, 2, **sampling)
    worker = engine(path, **OPTIONS)
    for i in range(2):
        worker.add(request_of(path, asking(f"{i} {LONG}"), f"r{i}", seed=i, **sampling)[0])
    told: Tokens = {}
    for step in range(60):
        if step == 7:
            assert _under_way(worker)
            assert worker.generate is not None
            worker.generate.abort(["r0"])
        for output in worker.step()[0]:
            assert step < 7 or output.request_id == "r1"
            told.setdefault((output.request_id, output.index), []).extend(output.token_ids)
    assert told["r1", 0] == expected["r1", 0]
    assert worker.check_integrity() == []
    assert worker.generate is not None
    assert worker.generate.scheduler.blocks.num_free == 400


def test_blocks_for_steps_that_are_not_made_are_given_back(model_dir: ModelDir) -> None:
    path = model_dir("qwen3")
    worker = engine(path, **{**OPTIONS, "prefix_caching": False})
    request, _ = request_of(path, asking("Hello"), "r", max_tokens=200, ignore_eos=True)
    worker.add(request)
    for _ in range(5):
        worker.step()
    assert worker.generate is not None
    held = worker.generate._live.choices("r")[0]
    assert len(held.blocks) * 4 >= len(held.tokens) + 8, "room for the steps of a run"
    worker.add(request_of(path, asking("Hi"), "other", max_tokens=2, ignore_eos=True)[0])
    for _ in range(2):
        worker.step()
    assert len(held.blocks) * 4 < len(held.tokens) + 8
    worker.generate.abort(["r", "other"])
    assert worker.check_integrity() == []


def test_a_deadline_that_passes_ends_its_request_alone(model_dir: ModelDir) -> None:
    path = model_dir("qwen3")
    now = [0.0]
    worker = engine(path, clock=lambda: now[0], **OPTIONS)
    for i in range(2):
        request, _ = request_of(path, asking(f"{i}"), f"r{i}", max_tokens=20, ignore_eos=True)
        request.deadline_s = 5.0 if i else None
        worker.add(request)
    told: Tokens = {}
    reasons: dict[str, str | None] = {}
    for step in range(40):
        if step == 5:
            assert _under_way(worker)
            now[0] = 6.0
        for output in worker.step()[0]:
            told.setdefault((output.request_id, output.index), []).extend(output.token_ids)
            reasons[output.request_id] = output.finish_reason
    assert reasons == {"r0": "length", "r1": "error"}
    assert len(told["r0", 0]) == 20
    assert worker.check_integrity() == []


def test_choices_of_one_request_run_in_a_row_together(model_dir: ModelDir, runs: list[int]) -> None:
    path = model_dir("qwen3")
    sampling = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.8, "n": 3}
    tokens = served(path, 1, **sampling)
    assert {len(found) for found in tokens.values()} == {12}
    assert 3 in runs


def test_what_cannot_be_sampled_ends_alone(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir("qwen3")
    expected = served(path, 3, max_tokens=20, ignore_eos=True)
    sample = Sampler.sample

    def failing(self: Sampler, logits: Any, requests: Any, ahead: Any = ()) -> Any:
        if any(one.source.request_id == "r1" and one.num_output == 6 for one in requests):
            raise RuntimeError("it cannot")
        return sample(self, logits, requests, ahead)

    monkeypatch.setattr(Sampler, "sample", failing)
    worker = engine(path, **OPTIONS)
    for i in range(3):
        worker.add(
            request_of(
                path, asking(f"{i} {LONG}"), f"r{i}", max_tokens=20, ignore_eos=True, seed=i
            )[0]
        )
    told: Tokens = {}
    for _ in range(50):
        for output in worker.step()[0]:
            told.setdefault((output.request_id, output.index), []).extend(output.token_ids)
    assert {name: len(found) for (name, _), found in told.items()} == {"r0": 20, "r1": 6, "r2": 20}
    assert told["r0", 0] == expected["r0", 0]
    assert told["r2", 0] == expected["r2", 0]
    assert worker.check_integrity() == []


def test_time_between_the_steps_of_a_run_is_not_theirs(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a picture is encoded before the next is taken."""
    path = model_dir("qwen3")
    now = [0.0]
    worker = engine(path, clock=lambda: now[0], **OPTIONS)
    assert worker.generate is not None
    seconds: list[float] = []
    monkeypatch.setattr(
        worker.generate._step_times._meter, "stepped", lambda _, took: seconds.append(took)
    )
    worker.add(request_of(path, asking("Hello"), "r", max_tokens=30, ignore_eos=True)[0])
    for _ in range(12):
        worker.step()
        now[0] += 0.25
    assert _under_way(worker)
    assert seconds == [0.0] * 12


@pytest.mark.parametrize("steps", [1, 16])
def test_a_request_that_has_ended_is_not_kept(
    steps: int, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its LoRA adapter, whose place another may want."""
    monkeypatch.setattr(parts, "_DECODE_STEPS", steps)
    path = model_dir("qwen3")
    worker = engine(path, **OPTIONS)
    assert worker.generate is not None
    worker.add(request_of(path, asking("Hello"), "r", max_tokens=5, ignore_eos=True)[0])
    request = weakref.ref(worker.generate._live.choices("r")[0])
    outputs = [output for _ in range(12) for output in worker.step()[0]]
    assert outputs[-1].finish_reason == "length"
    gc.collect()
    assert request() is None
