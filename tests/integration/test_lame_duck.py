"""Services that are told to stop while requests are under way."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of, tokens
from tests.support.conversations import LONG, asking
from tests.support.mocks import CHAT, Stream, mock
from tests.support.stack import STOP_S, Process, Stack, call, proxy, running
from tests.support.waiting import until

DIALECTS = pytest.mark.parametrize("dialect", ["tokens", "openai"])
COUNT = 12


def chat(**more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    return {
        "model": "tiny", "messages": [message], "max_tokens": COUNT, "ignore_eos": True,
        "return_token_ids": True, **more,
    }  # fmt: skip


def before(stack: Stack, dialect: str, step_ms: int, *flags: str) -> Process:
    """A proxy before a mock worker with such steps."""
    pace = ("--speed", "1", "--decode-base-ms", str(step_ms))
    worker = mock(stack, "decode", "--dialect", dialect, *pace)
    return proxy(stack, [], [], [worker], "--dialect", dialect, *flags)


def ended(process: Process) -> int:
    return process.process.wait(STOP_S)


@DIALECTS
def test_a_stream_ends_after_its_proxy_was_told_to_stop(model_dir: ModelDir, dialect: str) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        server = before(stack, dialect, 100, "--shutdown-timeout", "60")
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(call, server.url + CHAT, chat())
            stream = Stream(server.url, CHAT, chat(stream=True))
            events = stream.events()
            said = [next(events)]
            server.terminate()
            said += events
            assert whole.result()[0] == 200
        choices = [choice for event in said[:-1] for choice in json.loads(event)["choices"]]
        assert said[-1] == b"[DONE]"
        assert sum(len(choice.get("token_ids") or ()) for choice in choices) == COUNT
        assert ended(server) == 0


@DIALECTS
def test_what_does_not_end_in_time_gets_an_error(model_dir: ModelDir, dialect: str) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        server = before(stack, dialect, 2000, "--shutdown-timeout", "0.2")
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(call, server.url + CHAT, chat())
            stream = Stream(server.url, CHAT, chat(stream=True))
            events = stream.events()
            next(events)
            server.terminate()
            *_, error, done = events
            status, answer = whole.result()
        assert done == b"[DONE]" and json.loads(error)["error"]["code"] == "not_serving"
        assert status == 503 and answer["error"]["code"] == "not_serving"
        assert ended(server) == 0


@DIALECTS
def test_a_proxy_that_drains_serves_until_it_is_hurried(model_dir: ModelDir, dialect: str) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        server = before(stack, dialect, 20, "--drain-delay", "1000")
        assert call_status(f"{server.url}/ready") == 200
        server.terminate()
        until(lambda: call_status(f"{server.url}/ready") == 503)
        status, health = call(f"{server.url}/health")
        assert (status, health["proxy"]) == (200, "draining")
        assert call(server.url + CHAT, chat())[0] == 200
        server.process.send_signal(signal.SIGINT)
        assert ended(server) == 0


def test_a_worker_that_stops_serves_and_then_hands_over(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        leaves = ("--drain-delay", "1000", "--shutdown-timeout", "1000")
        workers = [stack.start("services.decode", *leaves) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        server = proxy(stack, [], [], workers)
        case, most = asking(LONG), {"max_tokens": 1000, "ignore_eos": True}
        expected = tokens(server, case, **most)
        stream = Stream(server.url, CHAT, body_of(case, **most, stream=True), timeout_s=60)
        events = stream.events()
        said = [next(events)]
        (busy,) = [one for one in workers if call(f"{one.url}/load")[1]["server_load"]]
        busy.terminate()
        until(lambda: call_status(f"{busy.url}/ready") == 503)
        assert call_status(f"{busy.url}/health") == 200
        assert tokens(busy, case, max_tokens=4, ignore_eos=True) == expected[:4], "it drains"
        busy.terminate()
        said += events
        choices = [c for event in said if event != b"[DONE]" for c in json.loads(event)["choices"]]
        assert [t for choice in choices for t in choice.get("token_ids") or ()] == expected
        assert said[-1] == b"[DONE]" and ended(busy) == 0


def call_status(url: str) -> int:
    """Of an answer that is no JSON."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_master_says_that_it_will_stop(start: Callable[..., Process]) -> None:
    master = start("--drain-delay", "1000")
    assert call_status(f"{master.url}/ready") == 200
    master.terminate()
    until(lambda: call_status(f"{master.url}/ready") == 503)
    assert call(f"{master.url}/health")[1]["master"] == "draining"
    master.terminate()
    assert ended(master) == 0


def test_a_master_that_stops_waits_for_no_news(start: Callable[..., Process]) -> None:
    master = start("--shutdown-timeout", "1000")
    first = call(f"{master.url}/workers")[1]
    with ThreadPoolExecutor(1) as pool:
        news = pool.submit(call, f"{master.url}/workers?after={first['version']}&wait_s=60")
        master.terminate()
        assert news.result()[0] == 200
    assert ended(master) == 0
