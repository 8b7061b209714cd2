"""What the launch script says before it starts anything."""

import os
import subprocess
from pathlib import Path

import pytest

from scripts.model_kind import main
from tests.conftest import ModelDir
from tests.support.tiny_models import TEXT_FAMILIES, VISION_FAMILIES

SCRIPT = Path(__file__).parents[3] / "scripts" / "disagg.sh"


@pytest.mark.parametrize("family", [*VISION_FAMILIES, *TEXT_FAMILIES])
def test_the_kind_of_a_model(
    family: str, model_dir: ModelDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(model_dir(family)) == 0
    expected = "vision" if family in VISION_FAMILIES else "text"
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_folder_that_is_no_model_is_told_in_one_line(
    missing: str,
    reason: str,
    model_dir: ModelDir,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for file in model_dir("qwen2_vl").iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    assert main(tmp_path) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("MODEL", "/nowhere", "error: MODEL=/nowhere is not a directory"),
        ("NUM_D", "0", "error: NUM_D=0 must be at least 1"),
        ("NUM_P", "two", "error: NUM_P=two must be a whole number"),
    ],
)
def test_a_setting_that_cannot_be_is_told_in_one_line(name: str, value: str, reason: str) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT)],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(reason)
