"""Engines that make no progress, stopped by signal or in a step that does not end, as one that
waits for a GPU that hangs: their worker says so, and their requests go on elsewhere."""

import contextlib
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, all_up, caught
from tests.support.conversations import asking
from tests.support.installed_plugin import describe
from tests.support.stack import Process, call, engine_of, idle, proxy, running
from tests.support.waiting import until

CASES = [asking(f"Question {number}?") for number in range(8)]
SHORT = {"max_tokens": 8, "ignore_eos": True}
LONG = {"max_tokens": 100, "ignore_eos": True}
FROZEN_S = 60.0  # at most: a hung request would take as long
BOUND_S = 90.0
HANGING = '''
import os, time
from pathlib import Path

def first_come(request):
    """An order of requests that takes as long as the file is there."""
    while Path(os.environ["HANGS"]).exists():
        time.sleep(0.05)
    return 0.0
'''


@dataclass
class Fleet:
    """Two workers, of which the first hangs while a file is there; one proxy hears of them by
    lists, one by their master."""

    master: Process
    workers: list[Process]
    proxies: dict[str, Process]
    hangs: Path
    expected: list[list[int]]
    long: list[list[int]]


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("hanging")
    (folder / "hanging.py").write_text(HANGING)
    groups = {"triptych.scheduling_policies": {"hanging": "hanging:first_come"}}
    describe(folder, "hanging", groups)
    with pytest.MonkeyPatch.context() as patched, running(model_dir("qwen3")) as stack:
        patched.setenv("PYTHONPATH", str(folder), prepend=":")
        patched.setenv("HANGS", str(folder / "hangs"))
        master = stack.start_plain("services.master")
        joined = ("--master-url", master.wait_ready())
        workers = [
            stack.start("services.decode", *joined, "--scheduling-policy", "hanging"),
            stack.start("services.decode", *joined),
        ]
        for worker in workers:
            worker.wait_ready()
        proxies = {
            "lists": proxy(stack, [], [], workers), "master": proxy(stack, [], [], [], *joined),
        }  # fmt: skip
        for server in proxies.values():
            until(lambda server=server: all_up(server, 2), bound_s=BOUND_S)
        expected = all_tokens(proxies["lists"], CASES, **SHORT)
        long = all_tokens(proxies["lists"], CASES[:4], **LONG)
        yield Fleet(master, workers, proxies, folder / "hangs", expected, long)
        for worker in workers:
            idle(worker)


def test_requests_leave_a_step_that_hangs_and_come_back(fleet: Fleet) -> None:
    """What hangs is work as any other, so that the bound is what `--engine-step-timeout` 0 makes
    of it: 10 s here, as no step takes 5. (The first test here: an engine that was stopped by signal
    has had a longer step.)"""
    server, (ill, well) = fleet.proxies["lists"], fleet.workers
    with ThreadPoolExecutor(4) as pool:
        streams = caught(pool, server, CASES[:4], lambda: busy(ill), **LONG)
        fleet.hangs.touch()
        assert all_tokens(server, CASES, **SHORT) == fleet.expected
        assert [one.result(BOUND_S) for one in streams] == fleet.long
    until(lambda: call_status(f"{ill.url}/health") == 503, bound_s=BOUND_S)
    assert any("a step does not end" in line for line in ill.log)
    assert call_status(f"{well.url}/health") == 200
    fleet.hangs.unlink()
    until(lambda: call_status(f"{ill.url}/ready") == 200, bound_s=BOUND_S)
    until(lambda: all_up(server, 2), bound_s=BOUND_S)
    assert all_tokens(ill, CASES, **SHORT) == fleet.expected


@contextlib.contextmanager
def frozen(worker: Process) -> Iterator[None]:
    pid = engine_of(worker)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(master: Process) -> set[bool]:
    return {view.get("usable", True) for view in call(f"{master.url}/workers")[1]["workers"]}


@pytest.mark.parametrize("way", ["lists", "master"])
def test_requests_leave_a_frozen_engine_and_come_back_to_it(fleet: Fleet, way: str) -> None:
    server, workers = fleet.proxies[way], fleet.workers
    with ThreadPoolExecutor(4) as pool:
        streams = caught(pool, server, CASES[:4], lambda: any(map(busy, workers)), **LONG)
        ill, well = sorted(workers, key=busy, reverse=True)
        with frozen(ill):
            assert all_tokens(server, CASES, **SHORT) == fleet.expected
            assert [one.result(FROZEN_S) for one in streams] == fleet.long
            until(lambda: call_status(f"{ill.url}/health") == 503)
            assert call_status(f"{ill.url}/ready") == 503
            assert call_status(f"{well.url}/health") == 200
            until(lambda: state_of(fleet.master) == {False, True})
    until(lambda: call_status(f"{ill.url}/ready") == 200, bound_s=FROZEN_S)
    until(lambda: all_up(server, 2), bound_s=FROZEN_S)
    until(lambda: state_of(fleet.master) == {True}, bound_s=FROZEN_S)
    for served in (server, ill):
        assert all_tokens(served, CASES, **SHORT) == fleet.expected


def busy(worker: Process) -> bool:
    return bool(call(f"{worker.url}/load")[1]["server_load"])


def call_status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            status: int = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    return status


def test_a_worker_whose_engine_is_frozen_still_stops(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.decode")
        worker.wait_ready()
        os.kill(engine_of(worker), signal.SIGSTOP)
        assert worker.stop() == 0
