"""Fixtures of tests with real processes."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.stack import Process


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start masters; all are ended with the test."""
    started: list[Process] = []

    def run(*flags: str) -> Process:
        process = Process("services.master", "--log-level", "warning", *flags, env={})
        started.append(process)
        process.wait_ready()
        return process

    yield run
    assert [process.stop() for process in started] == [0] * len(started)
