"""Stop strings end requests of a worker's own routes well: its figures and its task log say so."""

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.mocks import Stream
from tests.support.stack import Process, call, idle, running
from tests.support.waiting import until

COMPLETIONS = "/v1/completions"
ASKED = {"prompt": "How many?", "max_tokens": 100, "temperature": 0, "ignore_eos": True}

STOPPED = 'request_success_total{finished_reason="stop"'
SEEN = "e2e_request_latency_seconds_count"


def figure(worker: Process, name: str) -> float:
    with urllib.request.urlopen(f"{worker.url}/metrics", timeout=10) as response:
        shown = response.read().decode()
    (found,) = re.findall(rf"^triptych:{name}(?:,.*}}|{{.*}}) (\S+)$", shown, re.M)
    return float(found)


def ended(worker: Process, since: int) -> list[Any]:
    tasks: list[Any] = call(f"{worker.url}/worker_status", {"latest_finised_version": since})[1][
        "finished_task_list"
    ]
    return tasks


@pytest.fixture(scope="module")
def worker(model_dir: ModelDir) -> Iterator[Process]:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.decode")
        worker.wait_ready()
        yield worker
        idle(worker)


@pytest.fixture(scope="module")
def whole(worker: Process) -> str:
    """The text that nothing ends early."""
    text: str = call(worker.url + COMPLETIONS, ASKED)[1]["choices"][0]["text"]
    assert len(text) > 60
    call(
        worker.url + COMPLETIONS, {**ASKED, "stop": [text[20:30]]}
    )  # there are figures from now on
    return text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_a_request_that_stop_strings_end_is_a_success(
    worker: Process, whole: str, n: int, stream: bool
) -> None:
    before = call(f"{worker.url}/worker_status", {})[1]["version"]
    stopped, seen = (figure(worker, name) for name in (STOPPED, SEEN))
    body = {**ASKED, "stop": [whole[20:30]], "n": n, "stream": stream}
    if stream:
        events = Stream(worker.url, COMPLETIONS, body)
        assert list(events.events())[-1] == b"[DONE]"
        events.leave()
    else:
        choices = call(worker.url + COMPLETIONS, body)[1]["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["stop"] * n
    until(lambda: bool(ended(worker, before)), worker.log)
    assert [task.get("error_info", "") for task in ended(worker, before)] == [""]
    assert figure(worker, "request_aborted_total") == 0
    assert figure(worker, STOPPED) == stopped + n
    assert figure(worker, SEEN) == seen + n
