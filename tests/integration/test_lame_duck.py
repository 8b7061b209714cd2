"""Services that are told to stop while requests are under way."""

import http.client
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.mocks import CHAT, FAST, Stream, mock
from tests.support.reference import reference_generate
from tests.support.stack import STOP_S, Process, Stack, call, generated, idle, proxy, running
from tests.support.thinned import thinned
from tests.support.vllm_proxy import ask
from tests.support.waiting import until

DIALECTS = ("tokens", "openai")
COUNT = 12
STEP_MS = 100


def chat(**more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    return {
        "model": "tiny", "messages": [message], "max_tokens": COUNT, "ignore_eos": True,
        "return_token_ids": True, **more,
    }  # fmt: skip


@dataclass
class Mocks:
    """A mock worker of each dialect, both with long steps; each proxy is told to stop."""

    stack: Stack
    workers: dict[str, Process]

    def proxy(self, dialect: str, *flags: str) -> Process:
        worker = self.workers[dialect]
        return proxy(self.stack, [], [], [worker], "--dialect", dialect, *flags)


@pytest.fixture(scope="module")
def mocks(model_dir: ModelDir) -> Iterator[Mocks]:
    with running(model_dir("qwen2_5_vl")) as stack:
        pace = (*FAST, "--speed", "1", "--decode-base-ms", str(STEP_MS))
        workers = {
            dialect: stack.start("services.mock", "--role", "decode", "--dialect", dialect, *pace)
            for dialect in DIALECTS
        }
        for worker in workers.values():
            worker.wait_ready()
        yield Mocks(stack, workers)


def ended(process: Process) -> int:
    return process.process.wait(STOP_S)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_ends_after_its_proxy_was_told_to_stop(mocks: Mocks, dialect: str) -> None:
    server = mocks.proxy(dialect, "--shutdown-timeout", "60")
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


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_does_not_end_in_time_gets_an_error(mocks: Mocks, dialect: str) -> None:
    server, long = mocks.proxy(dialect, "--shutdown-timeout", "0.2"), chat(max_tokens=300)
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(call, server.url + CHAT, long)
        stream = Stream(server.url, CHAT, {**long, "stream": True})
        events = stream.events()
        next(events)
        server.terminate()
        *_, error, done = events
        status, answer = whole.result()
    assert done == b"[DONE]" and json.loads(error)["error"]["code"] == "not_serving"
    assert status == 503 and answer["error"]["code"] == "not_serving"
    assert ended(server) == 0


@pytest.mark.parametrize(("dialect",), thinned([(d,) for d in DIALECTS], lambda d: d == "openai"))
def test_a_proxy_that_drains_serves_until_it_is_hurried(mocks: Mocks, dialect: str) -> None:
    server = mocks.proxy(dialect, "--drain-delay", "1000")
    assert call_status(f"{server.url}/ready") == 200
    server.terminate()
    until(lambda: call_status(f"{server.url}/ready") == 503)
    status, health = call(f"{server.url}/health")
    assert (status, health["proxy"]) == (200, "draining")
    assert call(server.url + CHAT, chat(max_tokens=2))[0] == 200
    server.process.send_signal(signal.SIGINT)
    assert ended(server) == 0


def test_a_worker_that_stops_serves_and_then_hands_over(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        leaves = ("--drain-delay", "1000", "--shutdown-timeout", "1000")
        workers = [stack.start("services.decode", *leaves) for _ in range(2)]
        for worker in workers:
            worker.wait_ready()
        server = proxy(stack, [], [], workers)
        case, most = asking(LONG), {"max_tokens": 250, "ignore_eos": True}
        expected = tokens(server, case, **most)
        made = [generated(worker) for worker in workers]
        stream = Stream(server.url, CHAT, body_of(case, **most, stream=True), timeout_s=60)
        events = stream.events()
        said = [next(events)]
        (busy,) = [one for one, was in zip(workers, made, strict=True) if generated(one) > was]
        busy.terminate()
        until(lambda: call_status(f"{busy.url}/ready") == 503)
        assert call_status(f"{busy.url}/health") == 200
        assert tokens(busy, case, max_tokens=4, ignore_eos=True) == expected[:4], "it drains"
        busy.terminate()
        said += events
        choices = [c for event in said if event != b"[DONE]" for c in json.loads(event)["choices"]]
        assert [t for choice in choices for t in choice.get("token_ids") or ()] == expected
        assert said[-1] == b"[DONE]" and ended(busy) == 0
        for worker in workers:
            worker.kill()  # the other one would drain for long


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
    news = http.client.HTTPConnection(master.url.removeprefix("http://"), timeout=30)
    news.request("GET", f"/workers?after={first['version']}&wait_s=60")
    master.terminate()
    assert news.getresponse().status == 200
    news.close()
    assert ended(master) == 0


def test_workers_that_stop_wait_until_others_have_what_they_made(model_dir: ModelDir) -> None:
    """Embeddings and KV were made; no consumer had asked for them when their workers were told."""
    with running(model_dir("qwen2_5_vl")) as stack:
        patient = ("--shutdown-timeout", "60")
        encode, prefill, decode = (
            stack.start(f"services.{role}", *patient) for role in ("encoder", "prefill", "decode")
        )
        for worker in (encode, prefill, decode):
            worker.wait_ready()
        case = asking(picture(91), "What is in this image?")
        body = body_of(case, max_tokens=4, ignore_eos=True)
        alone = body_of([{"role": "user", "content": case[0]["content"][:1]}], max_tokens=1)
        media = ask(encode, alone)["ec_transfer_params"]
        encode.terminate()
        until(lambda: call_status(f"{encode.url}/ready") == 503)
        handed = {"kv_transfer_params": {"do_remote_decode": True}, "ec_transfer_params": media}
        first = ask(prefill, {**body, "max_tokens": 1, **handed})
        assert ended(encode) == 0
        prefill.terminate()
        until(lambda: call_status(f"{prefill.url}/ready") == 503)
        until(lambda: call(prefill.url + CHAT, body)[0] == 503)
        handed = {"kv_transfer_params": first["kv_transfer_params"], "ec_transfer_params": media}
        answer = ask(decode, {**body, **handed})
        expected = reference_generate(stack.model, case, 4, ignore_eos=True)
        assert answer["choices"][0]["token_ids"] == expected
        assert idle(decode)["counters"]["kv_fetched"] == 1
        assert ended(prefill) == 0


def test_a_drain_can_be_taken_back(mocks: Mocks) -> None:
    worker = mocks.workers["tokens"]
    for path, status in (("/drain", 503), ("/undrain", 200)):
        assert call(worker.url + path, b"", method="POST")[0] == 200
        assert call_status(f"{worker.url}/ready") == status
        assert call(worker.url + CHAT, chat(max_tokens=2))[0] == status


def test_a_mock_worker_ends_as_real_ones_do(model_dir: ModelDir) -> None:
    """It is a double for them here too: what is under way ends, or gets an error."""
    with running(model_dir("qwen2_5_vl")) as stack:
        slow = ("--role", "decode", *FAST, "--speed", "1", "--decode-base-ms")
        patient = stack.start("services.mock", *slow, "50", "--shutdown-timeout", "60")
        hasty = stack.start("services.mock", *slow, "2000")
        for worker in (patient, hasty):
            worker.wait_ready()
        ends = []
        for worker in (patient, hasty):
            events = Stream(worker.url, CHAT, chat(stream=True)).events()
            first = next(events)
            worker.terminate()
            *more, last = events
            ends.append([first, *more])
            assert last == b"[DONE]" and ended(worker) == 0
        choices = [choice for event in ends[0] for choice in json.loads(event)["choices"]]
        assert sum(len(choice.get("token_ids") or ()) for choice in choices) == COUNT
        assert json.loads(ends[1][-1])["error"]["code"] == "not_serving"


def test_a_mock_worker_asks_for_the_keys_that_real_ones_ask_for(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = mock(stack, "decode", "--api-key", "one", "--api-key", "two")
        for key, status in (("", 401), ("three", 401), ("one", 200), ("two", 200)):
            given = {"authorization": f"Bearer {key}"} if key else {}
            assert call(worker.url + CHAT, chat(), headers=given)[0] == status
            assert call(f"{worker.url}/integrity", headers=given)[0] == status
        assert call_status(f"{worker.url}/health") == 200
