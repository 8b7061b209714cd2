"""What the launch script says before it starts anything."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "disagg.sh"


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
