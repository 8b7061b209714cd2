"""Fixtures of tests with real processes."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.stack import Process


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Start masters; all are ended with the test."""
    started: list[Process] = []

    def run(*flags: str) -> Process:
        patient = ("--lease", "60", "--log-level", "warning")  # those who register are not heard of
        process = Process("services.master", *patient, *flags, env={})
        started.append(process)
        process.wait_ready()
        return process

    yield run
    assert [process.stop() for process in started] == [0] * len(started)
