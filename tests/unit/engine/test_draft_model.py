"""Guesses by a small model: answers stay what they are without, however good the guesses are."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from services.engine.config import Speculation
from services.engine.drafting import draft_model
from services.engine.drafting.draft_model import DraftModel
from services.engine.engine import Engine
from tests.conftest import ModelDir
from tests.support.conversations import picture_cases, text_cases
from tests.support.engines import engine, request_of, run
from tests.support.tiny_models import build
from tests.unit.engine.test_drafting import SAMPLING, answered, answers

FAMILY = "qwen2_5_vl"


def guessing_with(folder: Path, **options: Any) -> Speculation:
    given = {"num_speculative_tokens": 4, "adaptive": False, **options}
    return Speculation("draft_model", model=str(folder), **given)


def accepted(worker: Engine) -> tuple[int, int]:
    counted = worker.counters()
    return int(counted["accepted_draft_tokens"]), int(counted["draft_tokens"])


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same family."""
    return build(FAMILY, tmp_path_factory.mktemp("draft"), seed=1)


@pytest.fixture(scope="module")
def plain(model_dir: ModelDir) -> Iterator[Engine]:
    """An engine without guesses."""
    worker = engine(model_dir(FAMILY))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def guessing_by(model_dir: ModelDir, another: Path) -> Iterator[dict[str, Engine]]:
    """Engines with the guesses of the model itself and of another one."""
    path = model_dir(FAMILY)
    workers = {
        name: engine(path, speculation=guessing_with(folder))
        for name, folder in (("itself", path), ("another", another))
    }
    yield workers
    for worker in workers.values():
        worker.close()


@pytest.mark.parametrize("kind", SAMPLING)
def test_answers_are_what_they_are_without_guesses(
    kind: str, model_dir: ModelDir, plain: Engine, guessing_by: dict[str, Engine]
) -> None:
    path, cases = model_dir(FAMILY), picture_cases()[1:4]
    expected = answered(plain, path, cases, **SAMPLING[kind])
    for guessing in guessing_by.values():
        before = accepted(guessing)
        assert answered(guessing, path, cases, **SAMPLING[kind]) == expected
        right, guessed = (now - then for now, then in zip(accepted(guessing), before, strict=True))
        assert right <= guessed and (guessed > 0) == (kind != "penalties")


def test_all_guesses_of_the_model_itself_are_right(
    model_dir: ModelDir, plain: Engine, guessing_by: dict[str, Engine]
) -> None:
    path, cases, guessing = model_dir(FAMILY), text_cases(), guessing_by["itself"]
    before = accepted(guessing)
    steps = {worker: -worker.counters()["steps"] for worker in (guessing, plain)}
    assert answered(guessing, path, cases) == answered(plain, path, cases)
    right, guessed = (now - then for now, then in zip(accepted(guessing), before, strict=True))
    assert right == guessed > 0
    for worker in steps:
        steps[worker] += worker.counters()["steps"]
    assert steps[guessing] < 0.5 * steps[plain]


def test_pictures_are_guessed_past_by_a_model_of_text(
    model_dir: ModelDir, tmp_path: Path, plain: Engine
) -> None:
    path, cases = model_dir(FAMILY), picture_cases()
    small = shutil.copytree(model_dir("llama"), tmp_path / "small")
    (small / "tokenizer.json").unlink()  # it is another one
    guessing = engine(path, speculation=guessing_with(small))
    assert answers(guessing, path, cases) == answered(plain, path, cases)
    assert accepted(guessing)[1] > 0


def test_long_prompts_are_caught_up_with_in_pieces(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch, plain: Engine
) -> None:
    monkeypatch.setattr(draft_model, "_CATCH_UP", 7)
    path, cases = model_dir(FAMILY), text_cases()
    guessing = engine(path, speculation=guessing_with(path))
    expected = answered(plain, path, cases)
    assert answers(guessing, path, cases) == expected
    right, guessed = accepted(guessing)
    assert right == guessed > 0


def test_a_tiny_pool_whose_blocks_change_hands(model_dir: ModelDir, another: Path) -> None:
    path, cases = model_dir(FAMILY), picture_cases()[1:]
    small: dict[str, Any] = {"num_blocks": 14, "max_num_batched_tokens": 64}
    expected = answers(engine(path, **small), path, cases, **SAMPLING["seeded"])
    guessing = engine(path, speculation=guessing_with(another), **small)
    assert answers(guessing, path, cases, **SAMPLING["seeded"]) == expected
    assert guessing.counters()["preemptions"] > 0


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("broken")])
def test_a_draft_model_that_fails_fails_no_request(
    error: Exception, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch, plain: Engine
) -> None:
    path, cases = model_dir(FAMILY), text_cases()
    expected = answered(plain, path, cases)
    guessing = engine(path, speculation=guessing_with(path))
    calls = failing(monkeypatch, error, 1)
    assert answers(guessing, path, cases) == expected
    right, guessed = accepted(guessing)
    assert right == guessed
    assert (guessed > 0) == isinstance(error, torch.OutOfMemoryError)
    assert len(calls) > 1 or guessed == 0


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> list[int]:
    calls: list[int] = []
    compute: Callable[..., list[int]] = DraftModel._compute

    def fails(self: DraftModel, *given: Any) -> list[int]:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return compute(self, *given)

    monkeypatch.setattr(DraftModel, "_compute", fails)
    return calls


def test_a_draft_model_that_never_fits_is_given_up(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch, plain: Engine
) -> None:
    path, cases = model_dir(FAMILY), text_cases()
    guessing = engine(path, speculation=guessing_with(path))
    calls = failing(monkeypatch, torch.OutOfMemoryError("full"), 1 << 30)
    assert answers(guessing, path, cases) == answered(plain, path, cases)
    assert len(calls) == 3


def test_folders_that_cannot_guess_are_refused(model_dir: ModelDir, tmp_path: Path) -> None:
    path = model_dir(FAMILY)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        engine(path, speculation=guessing_with(tmp_path))
    with pytest.raises(ConfigError, match="another tokenizer"):
        engine(path, speculation=guessing_with(model_dir("gemma3")))


def test_a_prompt_found_in_the_cache_is_guessed_for(model_dir: ModelDir) -> None:
    path, case = model_dir(FAMILY), text_cases()[0]
    worker = engine(path, speculation=guessing_with(path))
    options = {"max_tokens": 12, "ignore_eos": True}
    first = run(worker, [request_of(path, case, "a", **options)])
    second = run(worker, [request_of(path, case, "b", **options)])
    assert list(first.values()) == list(second.values())
    right, guessed = accepted(worker)
    assert right == guessed > 0
    worker.close()
