"""A model by its path, as demo, or by its name at the hub."""

from pathlib import Path

import pytest

from protocol.errors import ConfigError
from services.frontend.model_folder import find_model
from services.frontend.model_info import ModelInfo

NAME = "someone/small-model"


def cached(home: Path, *commits: str, main: str = "") -> Path:
    """The cache's folder of `NAME`, with empty snapshots."""
    model = home / "hub" / "models--someone--small-model"
    for commit in commits:
        (model / "snapshots" / commit).mkdir(parents=True)
    if main:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(f"{main}\n")
    return model


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert find_model(str(tmp_path), {}) == tmp_path


@pytest.mark.parametrize("name", ["demo", "models/demo"])
def test_the_demo_is_found_from_anywhere_under_the_name_of_its_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_model(name, {})
    assert (found / "model.safetensors").is_file()
    assert ModelInfo.load(found).name == "demo"


def test_a_name_is_the_snapshot_of_main(tmp_path: Path) -> None:
    model = cached(tmp_path, "old", "new", main="new")
    assert find_model(NAME, {"HF_HOME": str(tmp_path)}) == model / "snapshots" / "new"
    assert find_model(NAME, {"HF_HUB_CACHE": str(tmp_path / "hub")}).name == "new"


def test_a_version_downloaded_by_its_commit_is_found_if_it_is_the_only_one(tmp_path: Path) -> None:
    cached(tmp_path, "one")
    assert find_model(NAME, {"HF_HOME": str(tmp_path)}).name == "one"
    cached(tmp_path, "two")
    with pytest.raises(ConfigError):
        find_model(NAME, {"HF_HOME": str(tmp_path)})


def test_a_name_that_is_not_there_is_told_with_the_command_that_gets_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"to download it: hf download someone/small-model$"):
        find_model(NAME, {"HF_HOME": str(tmp_path)})


@pytest.mark.parametrize("path", ["/nowhere/at-all", "nowhere", "./nowhere", "tests/nowhere"])
def test_a_path_that_is_not_there_is_no_name_of_the_hub(path: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a directory$"):
        find_model(path, {})
