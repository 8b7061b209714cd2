"""Fixtures shared by all tests."""

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from services.engine.environment import ensure_writable
from tests.support.side_by_side import here

ModelDir = Callable[[str], Path]
Pass = Callable[[float], None]

# How long an example takes says more about the machine than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means; 0 runs the tests in this process."""
    number = here()
    return number if number > 1 else 0


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """A collector that looks at all tests and modules stops this process for half a second each
    time, which is as long as some tests wait for an answer."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compile_cache() -> None:
    """Kernels are compiled here as in an engine, also where the home folder is read-only."""
    ensure_writable()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Each test begins with one thread for tensor operations, however many the test before it has
    set: on matrices as small as those of tests more only wait for one another."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> ModelDir:
    """Directory of a tiny random-weight model of a family, built once per session."""
    # Not at the top: tests of what has no models, and the process that hands out tests to others,
    # need neither torch nor transformers.
    from tests.support.tiny_models import build

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
