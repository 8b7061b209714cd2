"""What happens when clients leave, pictures repeat, workers die and come back."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_up, body_of, complete, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.engines import png
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, generated, idle, proxy, running
from tests.support.waiting import until


@dataclass
class Fleet:
    stack: Stack
    encoders: list[Process]
    prefill: Process
    decode: Process
    proxy: Process


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    """Two encoders, one prefill, one decode, one proxy."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encoders = [stack.start("services.encoder") for _ in range(2)]
        prefill, decode = stack.start("services.prefill"), stack.start("services.decode")
        for process in (*encoders, prefill, decode):
            process.wait_ready()
        server = proxy(stack, encoders, [prefill], [decode])
        yield Fleet(stack, encoders, prefill, decode, server)
        for worker in (*encoders, prefill, decode):
            idle(worker)


def counter(process: Process, name: str) -> float:
    return float(call(f"{process.url}/integrity")[1]["counters"][name])


def encoder_calls(fleet: Fleet) -> tuple[float, float]:
    """(pictures encoded, cache queries) over all encoders."""
    encoded = sum(counter(process, "mm_encoded") for process in fleet.encoders)
    return encoded, sum(counter(process, "mm_cache_queries") for process in fleet.encoders)


def received_bytes(process: Process) -> float:
    """Bytes of media a worker has been sent."""
    _, report = call(f"{process.url}/integrity")
    return float(report["counters"]["mm_received_bytes"])


def test_eight_requests_with_one_picture_encode_it_once(fleet: Fleet) -> None:
    before = encoder_calls(fleet)
    sent = sum(received_bytes(process) for process in fleet.encoders)
    case = asking(picture(501), "What is in this image?")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: tokens(fleet.proxy, case, max_tokens=6), range(8)))
    assert len({tuple(answer) for answer in answers}) == 1
    encoded, _ = encoder_calls(fleet)
    assert encoded - before[0] == 1
    received = sum(received_bytes(process) for process in fleet.encoders) - sent
    assert received == len(png(picture(501)))


def test_a_repeated_picture_sends_no_bytes(fleet: Fleet) -> None:
    case = asking(picture(502), "What is in this image?")
    first = tokens(fleet.proxy, case, max_tokens=6)
    sent = sum(received_bytes(process) for process in fleet.encoders)
    assert tokens(fleet.proxy, case, max_tokens=6) == first
    assert sum(received_bytes(process) for process in fleet.encoders) == sent


def test_an_evicted_embedding_is_made_again(fleet: Fleet) -> None:
    case = asking(picture(503), "What is in this image?")
    first = tokens(fleet.proxy, case, max_tokens=6)
    for process in fleet.encoders:
        call(f"{process.url}/reset_encoder_cache", b"")
    for process in (fleet.prefill, fleet.decode):
        call(f"{process.url}/reset_encoder_cache", b"")
        call(f"{process.url}/reset_prefix_cache", b"")
    assert tokens(fleet.proxy, case, max_tokens=6) == first


class Stream:
    """A streamed chat that can be left at any moment."""

    def __init__(self, server: Process, case: Any, **params: Any) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        body = json.dumps(body_of(case, stream=True, **params))
        self.connection.request(
            "POST", "/v1/chat/completions", body, {"content-type": "application/json"}
        )
        self.response = self.connection.getresponse()

    def event(self) -> Any:
        """The next event, None at the end of the stream."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                data = line[6:].strip()
                return None if data == b"[DONE]" else json.loads(data)
        return None

    def leave(self) -> None:
        self.response.close()
        self.connection.close()


@pytest.mark.parametrize("events", [1, 4])
def test_a_client_that_leaves_frees_everything_long_before_its_end(
    fleet: Fleet, events: int
) -> None:
    before = generated(fleet.decode)
    stream = Stream(fleet.proxy, asking(picture(504), LONG), max_tokens=1500, ignore_eos=True)
    for _ in range(events):
        assert stream.event() is not None
    stream.leave()
    for process in (fleet.prefill, fleet.decode):
        idle(process, timeout_s=60.0)
    assert generated(fleet.decode) - before < 1400


def test_a_client_that_leaves_before_the_answer_frees_everything(fleet: Fleet) -> None:
    before = generated(fleet.decode)
    host, port = fleet.proxy.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = json.dumps(body_of(asking(picture(505), LONG), max_tokens=1500, ignore_eos=True))
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    until(lambda: call(f"{fleet.decode.url}/load")[1]["server_load"])
    connection.close()
    for process in (fleet.prefill, fleet.decode):
        idle(process, timeout_s=60.0)
    assert generated(fleet.decode) - before < 1400


def test_streamed_and_whole_answers_agree(fleet: Fleet) -> None:
    case = asking(picture(506), "What is in this image?")
    whole = complete(fleet.proxy, case, max_tokens=10, ignore_eos=True)
    stream = Stream(
        fleet.proxy, case, max_tokens=10, ignore_eos=True, stream_options={"include_usage": True}
    )
    events = []
    while (event := stream.event()) is not None:
        events.append(event)
    stream.leave()
    deltas = [choice for event in events for choice in event["choices"]]
    assert (
        "".join(d["delta"].get("content") or "" for d in deltas)
        == (whole["choices"][0]["message"]["content"])
    )
    assert [t for d in deltas for t in d.get("token_ids", ())] == whole["choices"][0]["token_ids"]
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["length"]
    usage = {key: value for key, value in events[-1]["usage"].items() if "details" not in key}
    assert usage == {key: whole["usage"][key] for key in usage}


def tokens_of(events: list[Any]) -> list[int]:
    return [t for e in events for c in e["choices"] for t in c.get("token_ids") or ()]


def test_a_dead_worker_costs_its_requests_nothing(fleet: Fleet) -> None:
    """Prefill goes on where decode has stopped, and decode does both without prefill."""
    case, most = asking(picture(507), "What is in this image?"), 80
    expected = reference_generate(fleet.stack.model, case, most, ignore_eos=True)
    for victim in (fleet.decode, fleet.prefill):
        stream = Stream(fleet.proxy, case, max_tokens=most, ignore_eos=True)
        events = [*takewhile(bool, (stream.event() for _ in range(5)))]
        victim.kill()
        while (event := stream.event()) is not None:
            events.append(event)
        stream.leave()
        assert tokens_of(events) == expected
        assert tokens(fleet.proxy, case, max_tokens=most, ignore_eos=True) == expected
        victim.restart()
        until(lambda: all_up(fleet.proxy))


def test_an_encoder_that_is_down_is_passed_over(fleet: Fleet) -> None:
    fleet.encoders[0].kill()
    with contextlib.suppress(AssertionError):
        call(f"{fleet.proxy.url}/health")
    health = f"{fleet.proxy.url}/health"
    until(lambda: call(health)[1]["encode"][fleet.encoders[0].url] == "down")
    path = fleet.stack.model
    for seed in range(600, 603):
        case = asking(picture(seed), "What is in this image?")
        assert tokens(fleet.proxy, case, max_tokens=6, ignore_eos=True) == reference_generate(
            path, case, 6, ignore_eos=True
        )
    fleet.encoders[0].restart()


def test_stopping_waits_for_nothing_and_leaves_nothing(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = stack.start("services.pdfusion")
        worker.wait_ready()
        answers: list[Any] = []
        case = body_of(asking(LONG), max_tokens=1500, ignore_eos=True)
        thread = threading.Thread(
            target=lambda: answers.append(call(f"{worker.url}/v1/chat/completions", case)),
            daemon=True,
        )
        thread.start()
        while not call(f"{worker.url}/load")[1]["server_load"]:
            time.sleep(0.01)
        assert worker.stop() == 0
        assert not stack.segments.exists()


def test_the_level_of_the_log_is_the_engines_too(fleet: Fleet) -> None:
    url, log = f"{fleet.encoders[0].url}/set_log_level", fleet.encoders[0].log
    for level, before in (("debug", "info"), ("info", "debug")):
        assert call(url, {"level": level}) == (200, {"level": level, "before": before})
        line = f" engine: the log level is {level}; it was {before}\n"
        until(lambda line=line: any(each.endswith(line) for each in log))
