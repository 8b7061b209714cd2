"""An engine that is stopped by signal: its worker says so, and its requests go on elsewhere."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, all_up, caught
from tests.support.conversations import asking
from tests.support.stack import Process, call, engine_of, idle, proxy, running
from tests.support.waiting import until

CASES = [asking(f"Question {number}?") for number in range(16)]
SHORT = {"max_tokens": 8, "ignore_eos": True}
LONG = {"max_tokens": 200, "ignore_eos": True}
FROZEN_S = 60.0  # at most: a hung request would take as long


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


@pytest.mark.parametrize("mastered", [False, True], ids=["lists", "master"])
def test_requests_leave_a_frozen_engine_and_come_back_to_it(
    model_dir: ModelDir, mastered: bool
) -> None:
    with running(model_dir("qwen3")) as stack:
        master = stack.start_plain("services.master") if mastered else None
        joined = ("--master-url", master.wait_ready()) if master is not None else ()
        workers = [stack.start("services.decode", *joined) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        server = proxy(stack, [], [], [] if mastered else workers, *joined)
        until(lambda: all_up(server, 2))
        expected = all_tokens(server, CASES, **SHORT)
        long = all_tokens(server, CASES[:4], **LONG)
        with ThreadPoolExecutor(4) as pool:
            streams = caught(pool, server, CASES[:4], lambda: any(map(busy, workers)), **LONG)
            ill, well = sorted(workers, key=busy, reverse=True)
            with frozen(ill):
                assert all_tokens(server, CASES, **SHORT) == expected
                assert [one.result(FROZEN_S) for one in streams] == long
                until(lambda: call_status(f"{ill.url}/health") == 503)
                assert call_status(f"{ill.url}/ready") == 503
                assert call_status(f"{well.url}/health") == 200
                if master is not None:
                    until(lambda: state_of(master) == {False, True})
        until(lambda: call_status(f"{ill.url}/ready") == 200, bound_s=FROZEN_S)
        until(lambda: all_up(server, 2), bound_s=FROZEN_S)
        if master is not None:
            until(lambda: state_of(master) == {True}, bound_s=FROZEN_S)
        for served in (server, ill):
            assert all_tokens(served, CASES, **SHORT) == expected
        for worker in workers:
            idle(worker)


def busy(worker: Process) -> bool:
    return bool(call(f"{worker.url}/load")[1]["server_load"])


def call_status(url: str) -> int:
    import urllib.error
    import urllib.request

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
