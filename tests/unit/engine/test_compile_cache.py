"""Where compiled kernels are kept when the home folder cannot be written to."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from services.engine.environment import ensure_writable

USUAL = (("TRITON_CACHE_DIR", ".triton/cache"), ("NUMBA_CACHE_DIR", ".cache/triptych/numba"))


@pytest.fixture(autouse=True)
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
