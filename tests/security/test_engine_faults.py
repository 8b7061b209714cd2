"""An exception in an engine ends the requests it belongs to; the others, and the engine, go on."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from connectors.config import ECConfig, KVConfig
from protocol.errors import InternalError, TriptychError
from protocol.types import RequestOutput, SamplingParams
from services.engine.containment import StepGuard, contained, is_out_of_memory
from services.engine.engine import Engine
from services.engine.messages import Query
from services.engine.reports import answer
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import engine, request_of, run

CAUSES: list[Exception] = [
    ValueError("index out of range"),
    AssertionError(),
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


def doubling(bad: set[int], most: int = 100) -> Any:
    """A run that fails if one of its items is bad, or if there are too many of them."""

    def work(items: Sequence[int]) -> list[int]:
        if bad & set(items):
            raise ValueError("bad")
        if len(items) > most:
            raise torch.OutOfMemoryError("out of memory")
        return [2 * item for item in items]

    return work


def test_the_items_that_fail_alone_are_the_ones_that_fail() -> None:
    told: list[TriptychError] = []

    def failed(item: int, error: TriptychError) -> list[int]:
        told.append(error)
        return [-item]

    assert contained(doubling({3, 7}), range(10), failed) == [0, 2, 4, -3, 8, 10, 12, -7, 16, 18]
    assert all(isinstance(error, InternalError) for error in told) and len(told) == 2
    assert contained(doubling(set(), most=3), range(10), failed) == [2 * n for n in range(10)]
    assert len(told) == 2
    assert contained(doubling(set(), most=0), [5], failed) == [-5]
    assert (told[-1].status, told[-1].code) == (503, "out_of_memory")


def test_a_broken_gpu_ends_the_engine() -> None:
    def broken(_: Sequence[int]) -> list[int]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side"):
        contained(broken, [1, 2], lambda _, error: [])


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_out_of_memory(cause: Exception) -> None:
    assert is_out_of_memory(cause) == ("memory" in str(cause) or isinstance(cause, MemoryError))


class Failing:
    """Steps that raise while `causes` last."""

    def __init__(self, *causes: Exception, problems: tuple[str, ...] = ()) -> None:
        self.causes = list(causes)
        self.problems = list(problems)
        self.guard = StepGuard(self.step, lambda error: [error.code], lambda: self.problems)

    def step(self) -> list[str]:
        if self.causes:
            raise self.causes.pop(0)
        return ["fine"]


def test_a_step_that_raises_is_survived_a_few_times() -> None:
    failing = Failing(*[ValueError()] * 7)
    assert [failing.guard.step() for _ in range(8)] == [["internal_error"]] * 7 + [["fine"]]
    failing.causes = [ValueError()] * 8
    with pytest.raises(ValueError):
        for _ in range(8):
            failing.guard.step()


def test_wrong_books_end_the_engine() -> None:
    with pytest.raises(ValueError):
        Failing(ValueError(), problems=("block 3 leaks",)).guard.step()


@pytest.fixture(scope="module")
def served(model_dir: ModelDir) -> Iterator[Engine]:
    one = engine(model_dir("qwen2_5_vl"), kv=KVConfig("local"), ec=ECConfig("local"))
    yield one
    assert one.check_integrity() == []
    one.close()


def steps(served: Engine, count: int = 400) -> dict[str, list[RequestOutput]]:
    """Outputs by request until nothing is left."""
    core = served.generate
    assert core is not None
    found: dict[str, list[RequestOutput]] = {}
    for _ in range(count):
        for output in served.step()[0]:
            found.setdefault(output.request_id, []).append(output)
        if not len(core):
            return found
    raise AssertionError("requests did not finish")


def ids_of(outputs: list[RequestOutput]) -> list[int]:
    assert not any(output.error for output in outputs), outputs
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_request_that_cannot_be_computed_fails_alone(
    served: Engine, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    """And nothing of it is known as a prefix afterwards."""
    folder = model_dir("qwen2_5_vl")
    first, media = request_of(folder, asking("Hello"), "first")
    second, _ = request_of(folder, asking(LONG), "second")
    expected = run(served, [(first, media)])["first", 0]
    assert served.generate is not None and served.encode is not None
    served.reset_caches(prefix=True, encoder=True)
    model: Any = served.generate._runs._runner
    forward = model._model.forward
    poison = len(second.token_ids)

    def fails(inputs: Any, batch: Any) -> Any:
        if poison in batch.context_lens:
            raise cause
        return forward(inputs, batch)

    monkeypatch.setattr(model._model, "forward", fails)
    for request in (first, second):
        assert not served.add(request)
    found = steps(served)
    assert ids_of(found["first"]) == expected
    (failure,) = found["second"]
    assert failure.error is not None and failure.error.status in (500, 503)
    assert answer(served, Query(1, check=True)).problems == []
    monkeypatch.undo()
    again, _ = request_of(folder, asking(LONG), "again")
    assert run(served, [(again, media)])["again", 0]
    assert served.generate.scheduler.blocks.usage == 0


def test_what_the_sampler_refuses_fails_its_own_request(
    served: Engine, model_dir: ModelDir
) -> None:
    """As if a bad parameter had slipped through every check."""
    folder = model_dir("qwen2_5_vl")
    good, _ = request_of(folder, asking("Hello"), "good")
    bad, _ = request_of(folder, asking("Hello, you"), "bad")
    assert served.generate is not None
    for request in (good, bad):
        assert not served.add(request)
    bad.sampling = SamplingParams(max_tokens=16, temperature=0.0, logit_bias={-(10**7): 1.0})
    found = steps(served)
    assert len(ids_of(found["good"])) == 16 or found["good"][-1].finish_reason == "stop"
    assert found["bad"][-1].error is not None


def test_a_step_that_fails_outside_the_model_ends_its_requests(
    served: Engine, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose outputs the step had made already, and their offers."""
    folder = model_dir("qwen2_5_vl")
    assert served.generate is not None
    core = served.generate
    seal = core.transfers.offers.seal

    def fails_once(outputs: Any) -> None:
        monkeypatch.setattr(core.transfers.offers, "seal", seal)
        raise KeyError("books")

    for name, most in (("one", 1), ("two", 9)):
        request, _ = request_of(folder, asking("Hello"), name, max_tokens=most)
        assert not served.add(request)
    monkeypatch.setattr(core.transfers.offers, "seal", fails_once)
    found = steps(served)
    assert {name: outputs[-1].error is not None for name, outputs in found.items()} == {
        "one": True, "two": True,
    }  # fmt: skip
    request, media = request_of(folder, asking("Hello"), "later")
    assert run(served, [(request, media)])


def test_a_picture_that_cannot_be_encoded_fails_alone(
    served: Engine, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_dir("qwen2_5_vl")
    pairs = [request_of(folder, asking(picture(n, 56 * n, 56), "?"), f"r{n}") for n in (1, 2, 3)]
    assert served.encode is not None
    vision: Any = served.encode._run.vision
    whole = vision._encode

    def fails(model: Any, batch: list[Any]) -> Any:
        if any(pixels["image_grid_thw"].prod() == 2 * 16 for pixels in batch):
            raise ValueError("cannot")
        return whole(model, batch)

    monkeypatch.setattr(vision, "_encode", fails)
    for _, media in pairs:
        assert not served.add_media(media)
    failed: dict[str, bool] = {}
    while len(failed) < 3:
        failed |= {one.request_id: one.error is not None for one in served.step()[1]}
    assert failed == {"r1": False, "r2": True, "r3": False}


def test_pictures_that_cannot_be_queued_are_told_so(
    served: Engine, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, media = request_of(model_dir("qwen2_5_vl"), asking(picture(1), "?"), "r")
    assert served.encode is not None

    def fails(_: Any) -> None:
        raise ValueError("cannot")

    with monkeypatch.context() as patch:
        patch.setattr(served.encode._pictures, "add", fails)
        (output,) = served.add_media(media)
    assert output.request_id == "r" and output.error is not None and output.error.status == 500
    assert len(served.encode) == 0
    assert served.add_media(media) == []


def test_a_request_that_cannot_be_queued_is_told_so(
    served: Engine, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, _ = request_of(model_dir("qwen2_5_vl"), asking("Hello"), "r")
    core = served.generate
    assert core is not None

    def fails(_: Any) -> None:
        raise ValueError("pin")

    monkeypatch.setattr(core.scheduler.embeddings, "pin", fails)
    (refused,) = served.add(request)
    assert refused.error is not None and not len(core)
    monkeypatch.undo()
    assert not served.add(request)
    steps(served)
