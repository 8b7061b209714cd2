"""Requests that somebody else aborts: those who wait for them are told, and nothing is left."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from tests.conftest import ModelDir
from tests.support.mocks import CHAT, GENERATE, Stream, generate_body, mock
from tests.support.stack import Process, call, idle, running
from tests.support.waiting import until

LONG = 3500
ASKED = [{"role": "user", "content": "Tell me all there is to tell."}]


@pytest.fixture(scope="module", params=["worker", "mock"])
def worker(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Process]:
    """A decode worker, which is slow enough for an abort to find what it is for."""
    with running(model_dir("qwen2_5_vl")) as stack:
        if request.param == "mock":
            process = mock(stack, "decode", "--decode-base-ms", "400")
        else:
            process = stack.start("services.decode")
            process.wait_ready()
        yield process
        idle(process)


def tasks(worker: Process) -> list[Any]:
    found: list[Any] = call(f"{worker.url}/worker_status", {})[1]["running_task_info"]
    return found


def abort(worker: Process, name: str) -> None:
    assert call(f"{worker.url}/abort_requests", {"request_ids": [name, "unknown"]})[0] == 200


def test_every_choice_ends_by_being_aborted(worker: Process) -> None:
    body = generate_body([7] * 40, LONG, request_id="whole", ignore_eos=True)
    body["sampling_params"] |= {"n": 2, "ignore_eos": True}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, worker.url + GENERATE, body)
        until(lambda: [t["phase"] for t in tasks(worker)] == ["RUNNING"])
        abort(worker, "whole")
        status, answer = asked.result(timeout=60)
    assert status == 200
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["abort"] * 2
    assert all(0 < len(choice["token_ids"]) < LONG for choice in answer["choices"])
    assert tasks(worker) == []


def test_a_stream_ends_in_good_order(worker: Process) -> None:
    body = {
        "model": call(f"{worker.url}/v1/models")[1]["data"][0]["id"], "messages": ASKED,
        "max_tokens": LONG, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    stream = Stream(worker.url, CHAT, body)
    events = stream.events()
    for _ in range(3):
        next(events)
    (task,) = tasks(worker)
    abort(worker, task["request_id"])
    *chunks, usage, done = list(events)
    assert done == b"[DONE]"
    last = msgspec.json.decode(chunks[-1])
    assert last["choices"][0]["finish_reason"] == "abort"
    assert 0 < msgspec.json.decode(usage)["usage"]["completion_tokens"] < LONG
    stream.leave()
    assert tasks(worker) == []
