"""Fixtures shared by all tests."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from services.engine.compile_cache import ensure_writable
from tests.support.tiny_models import build

ModelDir = Callable[[str], Path]
Pass = Callable[[float], None]


@pytest.fixture(scope="session", autouse=True)
def compile_cache() -> None:
    """Kernels are compiled here as in an engine, also where the home folder is read-only."""
    ensure_writable()


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


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Pass:
    """Let seconds pass on the monotonic clock of this process, at once."""
    now, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + ahead[0])

    def jump(seconds: float) -> None:
        ahead[0] += seconds

    return jump
