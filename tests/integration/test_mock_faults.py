"""Mock workers that fail on demand: as a worker can fail, and no worse."""

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from services.mock.tokens import Vocabulary
from tests.conftest import ModelDir
from tests.support.mocks import GENERATE, HAND_OVER, Stream, ask, generate_body, mock
from tests.support.stack import STOP_S, Process, Stack, call, idle, running
from tests.support.waiting import until


@dataclass
class Fleet:
    stack: Stack
    prefill: Process
    decode: Process


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        workers = [mock(stack, role) for role in ("prefill", "decode")]
        yield Fleet(stack, *workers)
        for worker in workers:
            idle(worker)


@pytest.fixture
def faulty(fleet: Fleet) -> Iterator[Process]:
    """The decode worker, right again afterwards."""
    yield fleet.decode
    host = fleet.decode.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("DELETE", "/faults")
    assert connection.getresponse().status == 200


def set_fault(process: Process, kind: str, **more: Any) -> None:
    ask(process, "/faults", {"kind": kind, **more})


def test_errors_are_answered_and_end(faulty: Process) -> None:
    for status in (500, 503):
        set_fault(faulty, "error", status=status, count=1)
        found, answer = call(faulty.url + GENERATE, generate_body([1]))
        assert found == status and answer["error"]["message"]
    assert call(faulty.url + GENERATE, generate_body([1]))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_hang_says_nothing_and_leaves_nothing(faulty: Process, stream: bool) -> None:
    set_fault(faulty, "hang", count=1)
    with pytest.raises(TimeoutError):
        Stream(faulty.url, GENERATE, generate_body([1], stream=stream), timeout_s=0.5)
    idle(faulty)


def test_a_stream_hangs_after_its_tokens(faulty: Process) -> None:
    set_fault(faulty, "hang", count=1, after_tokens=3)
    stream = Stream(faulty.url, GENERATE, generate_body([1], 500, stream=True))
    found: list[int] = []
    with pytest.raises(TimeoutError):
        for event in stream.events():
            found += json.loads(event)["choices"][0]["token_ids"]
            if len(found) == 3:
                stream.connection.sock.settimeout(0.5)
    assert found == Vocabulary().answer([1], length=3)
    stream.leave()
    idle(faulty)


def test_a_cut_connection_is_cut(faulty: Process) -> None:
    set_fault(faulty, "drop", count=1)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        Stream(faulty.url, GENERATE, generate_body([1]))
    set_fault(faulty, "drop", count=1, after_tokens=3)
    stream = Stream(faulty.url, GENERATE, generate_body([1], 500, stream=True))
    count = 0
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        for _ in stream.events():
            count += 1
        stream.response.read()
        raise ConnectionError("the stream ended early")
    assert count <= 3
    idle(faulty)


@pytest.mark.parametrize("kind", ["garbage", "half_json", "content_type"])
def test_answers_that_are_no_answers(faulty: Process, kind: str) -> None:
    set_fault(faulty, kind, count=1)
    whole = Stream(faulty.url, GENERATE, generate_body([1]))
    body = whole.response.read()
    with pytest.raises(ValueError):
        json.loads(body)
    is_html = whole.response.getheader("content-type", "").startswith("text/html")
    assert whole.response.status == 200 and is_html == (kind == "content_type")
    set_fault(faulty, kind, count=1)
    stream = Stream(faulty.url, GENERATE, generate_body([1], stream=True))
    first = stream.response.readline()
    with pytest.raises(ValueError):
        json.loads(first.removeprefix(b"data: "))
    stream.leave()
    idle(faulty)


def test_streams_without_an_end(faulty: Process) -> None:
    set_fault(faulty, "no_done", count=1)
    events = list(Stream(faulty.url, GENERATE, generate_body([1], stream=True)).events())
    assert b"[DONE]" not in events and len(events) == 9
    set_fault(faulty, "no_end", count=1)
    stream = Stream(faulty.url, GENERATE, generate_body([1], stream=True))
    count = 0
    with pytest.raises(TimeoutError):
        for event in stream.events():
            count += event != b"[DONE]"
            if count == 9:
                stream.connection.sock.settimeout(1.0)
    assert count == 9
    stream.leave()


def test_any_route_can_fail(faulty: Process) -> None:
    set_fault(faulty, "error", status=503, paths=["/health"])
    set_fault(faulty, "half_json", paths=["/server_info"])
    assert call(f"{faulty.url}/health")[0] == 503
    with pytest.raises(ValueError):
        call(f"{faulty.url}/server_info")
    ask(faulty, GENERATE, generate_body([1]))


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_count_is_wrong(faulty: Process, stream: bool) -> None:
    set_fault(faulty, "wrong_count", count=1)
    body = generate_body([1], 4, stream=stream)
    if stream:
        events = [
            json.loads(e) for e in Stream(faulty.url, GENERATE, body).events() if e[:1] == b"{"
        ]
        tokens = [t for e in events for c in e["choices"] for t in c["token_ids"]]
    else:
        tokens = ask(faulty, GENERATE, body)["choices"][0]["token_ids"]
    assert len(tokens) > 4
    assert len(ask(faulty, GENERATE, generate_body([1], 4))["choices"][0]["token_ids"]) == 4


def test_a_wrong_handle_names_another_request(fleet: Fleet) -> None:
    """Decode, given it, goes on with the other prompt: that is how it can be found out."""
    one, two = list(range(200, 240)), list(range(300, 340))
    other = ask(fleet.prefill, GENERATE, generate_body(one, kv_transfer_params=HAND_OVER))
    set_fault(fleet.prefill, "wrong_handle", count=1)
    mine = ask(fleet.prefill, GENERATE, generate_body(two, kv_transfer_params=HAND_OVER))
    params = mine["kv_transfer_params"]
    assert params["remote_request_id"] == other["request_id"] != mine["request_id"]
    answer = ask(fleet.decode, GENERATE, generate_body(two, kv_transfer_params=params))
    assert answer["choices"][0]["token_ids"] == Vocabulary().answer(one, length=8)
    call(f"{fleet.prefill.url}/abort_requests", {"request_ids": [mine["request_id"]]})
    idle(fleet.prefill)


def test_slow_work_takes_longer_until_it_is_over(faulty: Process) -> None:
    def seconds() -> float:
        begun = time.monotonic()
        ask(faulty, GENERATE, generate_body([1], 21))
        return time.monotonic() - begun

    slowest = 20 * 10e-3  # 20 steps of 10 ms, 20 times as fast, 20 times as slow
    set_fault(faulty, "slow", factor=20)
    assert seconds() >= slowest
    set_fault(faulty, "slow", factor=20, duration_s=0.2)
    until(lambda: seconds() < slowest)


def test_a_worker_that_refuses_comes_back(fleet: Fleet) -> None:
    worker = mock(fleet.stack, "decode")
    set_fault(worker, "refuse", duration_s=3)
    deadline = time.monotonic() + 30
    refused = False
    while time.monotonic() < deadline:
        try:
            call(f"{worker.url}/health", timeout_s=1)
            if refused:
                break
        except OSError:
            refused = True
        time.sleep(0.01)
    assert refused and call(worker.url + GENERATE, generate_body([1]))[0] == 200


def test_a_worker_that_dies_is_dead(fleet: Fleet) -> None:
    rule = '{"kind": "die", "after_tokens": 2}'
    worker = mock(fleet.stack, "decode", "--faults", rule)
    stream = Stream(worker.url, GENERATE, generate_body([1], 100, stream=True))
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        assert len(list(stream.events())) <= 2
    assert worker.process.wait(STOP_S) == 1
