"""Threads of an engine leave a core that others need."""

import asyncio
from typing import Any

import pytest

from services.engine.config import EngineConfig
from services.engine.environment import ROUNDS, environment_of
from services.worker.engine_client import EngineClient


def test_waiting_is_bounded_unless_the_operator_says_how_threads_wait() -> None:
    assert environment_of({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": ROUNDS}
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        assert environment_of(said) == said


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
