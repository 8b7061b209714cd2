"""What `benchmarks.bench_drafting` measures is what it says."""

from pathlib import Path

import pytest

from benchmarks.bench_drafting import models
from benchmarks.bench_drafting.engines import FIRST, Load, engine, measure
from benchmarks.bench_drafting.models import Models
from services.engine.config import Speculation


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return models.build(tmp_path_factory.mktemp("drafting"), layers=2, few=1)


@pytest.mark.parametrize(("name", "least", "most"), [("right", 0.8, 1.0), ("wrong", 0.0, 0.3)])
def test_draft_models_are_right_or_wrong(
    name: str, least: float, most: float, built: Models
) -> None:
    folder: Path = getattr(built, name)
    worker = engine(built.large, Speculation("draft_model", 4, model=str(folder)), 2)
    found = measure(worker, Load(0, 2, 12))
    assert found.guessed > 0
    assert least <= found.right / found.guessed <= most
    assert [len(answer) for answer in found.answers] == [12, 12]
    worker.close()


def test_answers_are_drawn_from_so_many_tokens(built: Models) -> None:
    worker = engine(built.large, None, 1)
    (answer,) = measure(worker, Load(3, 1, 40)).answers
    assert set(answer) == set(range(FIRST, FIRST + 3))
    worker.close()
