"""Fixtures shared by all tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import build

ModelDir = Callable[[str], Path]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    """Directory of a tiny random-weight model of a family, built once per session."""
    root = tmp_path_factory.mktemp("tiny")
    built: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in built:
            built[family] = build(family, root / family)
        return built[family]

    return get
