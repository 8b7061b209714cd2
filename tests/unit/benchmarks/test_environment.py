"""Benchmarks that run an engine's parts in their own process start as an engine does."""

import os
import sys
from typing import Any

import pytest

from benchmarks.common.environment import start_as_an_engine
from services.engine.environment import environment_of


def test_a_command_starts_again_once_with_an_engines_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(os, "execve", lambda *given: started.append(given))
    monkeypatch.setattr(sys, "argv", ["bench", "--quick"])
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    start_as_an_engine("benchmarks.bench_pictures")
    command = [sys.executable, "-m", "benchmarks.bench_pictures", "--quick"]
    wanted = environment_of(os.environ)
    assert started == [(sys.executable, command, wanted)] and "GLIBC_TUNABLES" in wanted
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    start_as_an_engine("benchmarks.bench_pictures")
    assert len(started) == 1
