"""Lines of workers that go up and down, with the cause."""

import logging
import time
from collections.abc import Callable

import pytest

from proxy.fleet.fleet import Fleet
from proxy.fleet.fleet_log import StateLog
from proxy.fleet.worker import Instance

URL = "http://d:1"


@pytest.fixture
def fleet() -> Fleet:
    found = Fleet.from_urls("", "", URL)
    found.subscribe(StateLog(found).look)
    return found


def frozen(instance: Instance) -> None:
    instance.late_probes = 3
    instance.late(alone=False, cut_off=False)


def avoided(instance: Instance) -> None:
    for _ in range(instance.breaker.threshold):
        instance.breaker.failed(time.monotonic())


def drained(instance: Instance) -> None:
    instance.draining = True


CASES: list[tuple[Callable[[Instance], None], str, str]] = [
    (lambda worker: worker.refused("connection refused"), "down", "connection refused"),
    (frozen, "frozen", "it has been silent for too long"),
    (avoided, "avoided", "5 calls in a row failed (--breaker-failures)"),
    (drained, "draining", ""),
]


@pytest.mark.parametrize(("change", "event", "cause"), CASES, ids=[case[1] for case in CASES])
def test_each_change_is_said_once_and_its_end(
    change: Callable[[Instance], None], event: str, cause: str, fleet: Fleet,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    (worker,) = fleet.decode
    fleet.news()
    change(worker)
    fleet.news()
    fleet.news()
    worker.answered()
    worker.breaker.succeeded()
    worker.draining = False
    fleet.news()
    assert [record.getMessage() for record in caplog.records] == [
        "worker up", f"worker {event}", "worker up",
    ]  # fmt: skip
    said = vars(caplog.records[1])["fields"]
    assert said == {"role": "decode", "url": URL} | ({"cause": cause} if cause else {})
    assert "cause" not in vars(caplog.records[2])["fields"]


def test_a_call_that_finds_a_worker_gone_says_why(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.news()
    fleet.lose(fleet.decode[0], "the worker serves no more")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert vars(record)["fields"]["cause"] == "the worker serves no more"
