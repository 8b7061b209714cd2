"""The environment in which a benchmark runs what an engine's process runs."""

from __future__ import annotations

import os
import sys

from services.engine.environment import environment_of


def start_as_an_engine(module: str) -> None:
    """Start the command `python -m module` again, unless this process has the environment that an
    engine's starts with: libraries read it as they are loaded."""
    wanted = environment_of(os.environ)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], wanted)
