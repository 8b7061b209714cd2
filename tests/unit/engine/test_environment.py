"""Compiled kernels where the home folder cannot be written to; threads that leave a core to others;
a worker's log has the worker's own lines."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from services.engine.config import EngineConfig
from services.engine.environment import ROUNDS, ensure_writable, environment_of
from services.frontend.model_folder import find_model
from services.worker.engine_client import EngineClient
from tests.support.stack import Process

USUAL = (("TRITON_CACHE_DIR", ".triton/cache"), ("NUMBA_CACHE_DIR", ".cache/triptych/numba"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for variable, _ in USUAL:
        monkeypatch.delenv(variable, raising=False)
    return home


@pytest.mark.parametrize(("variable", "usual"), USUAL)
def test_a_writable_home_is_used(variable: str, usual: str, home: Path) -> None:
    ensure_writable()
    assert Path(os.environ[variable]).is_relative_to(home / usual)
    assert Path(os.environ[variable]).is_dir()


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("variable", "usual"), USUAL)
def test_a_folder_that_was_chosen_stays(
    variable: str, usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/chosen")
    ensure_writable()
    assert os.environ[variable] == "/chosen"


@pytest.mark.parametrize(("variable", "usual"), USUAL)
def test_without_one_a_private_folder_is_made(
    variable: str, usual: str, home: Path, tmp_path: Path
) -> None:
    """A file stands where the folder should be: also root cannot write there."""
    (home / usual.split("/")[0]).write_text("")
    ensure_writable()
    folder = Path(os.environ[variable])
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    ensure_writable()


@pytest.mark.usefixtures("home")
def test_kernels_of_other_sources_or_another_processor_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Numba would take them: it looks at the file of the outermost function alone."""

    def folder() -> str:
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        ensure_writable()
        return os.environ["NUMBA_CACHE_DIR"]

    before, read = folder(), Path.read_bytes
    assert folder() == before
    changed = "numba_bfloat16.py"
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path.name == changed))
    other = folder()
    text = Path.read_text

    def another(path: Path, *given: Any, **named: Any) -> str:
        found = text(path, *given, **named)
        return found.replace("flags", "flags : another", 1) if path.name == "cpuinfo" else found

    monkeypatch.setattr(Path, "read_text", another)
    assert len({before, other, folder()}) == 3


def test_waiting_is_bounded_unless_the_operator_says_how_threads_wait() -> None:
    found = environment_of({"A": "b"})
    assert (found["A"], found["GOMP_SPINCOUNT"]) == ("b", ROUNDS)
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert environment_of({"GLIBC_TUNABLES": "x"})["GLIBC_TUNABLES"] == "x"
    assert environment_of({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in environment_of({"OMP_WAIT_POLICY": "active"})


async def test_an_engine_is_started_with_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KEPT", "yes")
    started: list[dict[str, str]] = []

    async def refuse(*command: str, env: dict[str, str], **_: Any) -> None:
        started.append(env)
        raise OSError("no process")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    config = EngineConfig(model_dir="m", model="m", revision="r", parts=("language",))
    with pytest.raises(OSError, match="no process"):
        await EngineClient.start(config, 1.0)
    (environment,) = started
    assert (environment["GOMP_SPINCOUNT"], environment["KEPT"]) == (ROUNDS, "yes")


def test_the_operators_word_wins() -> None:
    said = {"TRANSFORMERS_VERBOSITY": "info", "HF_HUB_DISABLE_PROGRESS_BARS": "0"}
    found = environment_of({**said, "KEPT": "yes"})
    assert {name: found[name] for name in (*said, "KEPT")} == {**said, "KEPT": "yes"}


def test_a_bare_worker_writes_nothing_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its warnings about the parts that an encoder leaves out, nor its bar."""
    for name in environment_of({}):
        monkeypatch.delenv(name, raising=False)
    flags = ("--model", str(find_model("demo")), "--log-level", "info")
    worker = Process("services.encoder", *flags, env={"OMP_NUM_THREADS": "1"}, forked=False)
    try:
        worker.wait_ready()
    finally:
        worker.stop()
    assert not [line for line in worker.log if "[transformers]" in line or "Loading w" in line]
