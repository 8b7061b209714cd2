"""Where compiled kernels are kept when the home folder cannot be written to."""

import os
import tempfile
from pathlib import Path

import pytest

from services.engine.compile_cache import ensure_writable


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    return home


def test_a_writable_home_is_used() -> None:
    ensure_writable()
    assert "TRITON_CACHE_DIR" not in os.environ


def test_a_folder_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/chosen")
    ensure_writable()
    assert os.environ["TRITON_CACHE_DIR"] == "/chosen"


def test_without_one_a_private_folder_is_made(home: Path, tmp_path: Path) -> None:
    """A file stands where the folder should be: also root cannot write there."""
    (home / ".triton").write_text("")
    ensure_writable()
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    ensure_writable()
