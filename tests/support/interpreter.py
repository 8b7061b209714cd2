"""Tests that Triton's interpreter runs: in a process of their own, since kernels are made for the
interpreter or for a device on import."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "tests.support.interpreted"


def passes(*names: str, marked: str = "not slow") -> None:
    """The tests of each `tests/support/NAME` so marked pass under the interpreter."""
    options = ("-p", "no:cacheprovider", "-p", PLUGIN, "-m", marked)
    files = [f"tests/support/{name}" for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, *files],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
