"""`--workers`: several processes of one proxy on one port."""

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proxy.siblings import merged
from tests.conftest import ModelDir
from tests.support.mocks import CHAT, Stream, mock
from tests.support.stack import START_S, Process, Stack, call, metric, proxy, running

KEY = {"x-api-key": "secret"}
COUNT = 'proxy:e2e_request_latency_seconds_count{process="%d"}'


@pytest.fixture(scope="module")
def stack(model_dir: ModelDir) -> Iterator[Stack]:
    with running(model_dir("qwen2_5_vl")) as found:
        yield found


@pytest.fixture(scope="module")
def worker(stack: Stack) -> Process:
    return mock(stack, "pdfusion", "--speed", "1")


@pytest.fixture
def front(stack: Stack, worker: Process) -> Iterator[Process]:
    flags = ("--workers", "2", "--admin-api-key", "secret")
    process = proxy(stack, [], [], [worker], *flags)
    until(lambda: len(samples(process, "proxy:instance_up")) == 2)
    yield process
    process.stop()


def until(holds: Any) -> None:
    deadline = time.monotonic() + START_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def children(process: Process) -> list[int]:
    pid = process.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def samples(process: Process, name: str) -> dict[str, float]:
    """By what follows the name: the labels."""
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=10) as response:
        lines = [line.decode().rpartition(" ") for line in response.read().splitlines()]
    found = {head: float(value) for head, _, value in lines if head.startswith(f"triptych_{name}")}
    return {head.partition("{")[2]: value for head, value in found.items() if "{" in head}


def ask(process: Process) -> int:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return call(process.url + CHAT, body)[0]


def test_both_serve_and_metrics_are_of_both(front: Process) -> None:
    assert len(children(front)) == 2
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: ask(front), range(32))) == [200] * 32
    until(lambda: sum(metric(front, COUNT % number) for number in (0, 1)) == 32)
    with urllib.request.urlopen(f"{front.url}/metrics", timeout=10) as response:
        text = response.read().decode()
    named = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(named) == len(set(named)), "a name is described once"


def test_one_that_dies_is_started_again(front: Process) -> None:
    before = children(front)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(children(front)) == 2 and before[0] not in children(front))
    assert [ask(front) for _ in range(8)] == [200] * 8
    until(lambda: len(samples(front, "proxy:instance_up")) == 2)
    assert any("was ended by SIGKILL" in line for line in front.log)


def test_told_to_end_all_finish_what_they_have(front: Process) -> None:
    body = {"messages": [{"role": "user", "content": "tell"}], "max_tokens": 30, "stream": True,
            "ignore_eos": True}  # fmt: skip
    streams = [Stream(front.url, CHAT, body) for _ in range(4)]
    ends: list[bytes] = []

    def read(stream: Stream) -> None:
        ends.append(list(stream.events())[-1])

    readers = [threading.Thread(target=read, args=(stream,)) for stream in streams]
    for reader in readers:
        reader.start()
    assert front.stop() == 0
    for reader in readers:
        reader.join(START_S)
    assert ends == [b"[DONE]"] * 4


def test_what_one_process_alone_would_know_is_refused(front: Process) -> None:
    status, answer = call(
        f"{front.url}/instances", {"role": "decode", "url": "http://127.0.0.1:9"}, headers=KEY
    )
    assert status == 400 and "--master-url" in answer["error"]["message"]
    status, _ = call(f"{front.url}/set_log_level", {"level": "warning"}, headers=KEY)
    assert status == 200
    until(lambda: sum("log level is warning" in line for line in front.log) == 2)


def test_responses_are_not_stored_and_say_so(front: Process) -> None:
    wanted = {"input": "Hi", "max_output_tokens": 2, "store": True}
    status, answer = call(f"{front.url}/v1/responses", wanted)
    assert (status, answer["store"]) == (200, False)


def test_one_that_cannot_serve_ends_all(stack: Stack) -> None:
    flags = ("--workers", "2", "--model", "/none", "--decode-servers-urls", "http://127.0.0.1:9")
    status, lines = stack.start_plain("proxy", *flags).refusal()
    assert status == 2 and any("--model" in line for line in lines)
    gone = stack.start_plain("proxy", *flags, "--kserve-grpc-port", "0")
    status, lines = gone.refusal()
    assert status == 2 and "--kserve-grpc-port" in lines[-1]


def test_without_their_parent_they_finish_what_they_have_and_end(front: Process) -> None:
    left = children(front)
    body = {"messages": [{"role": "user", "content": "tell"}], "max_tokens": 100, "stream": True,
            "ignore_eos": True}  # fmt: skip
    events = Stream(front.url, CHAT, body).events()
    next(events)
    front.kill()
    rest = list(events)
    assert rest[-1] == b"[DONE]" and not any(b'"error"' in event for event in rest)
    until(lambda: not any(alive(pid) for pid in left))


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_samples_of_one_name_stay_together() -> None:
    one = b'# HELP a A.\n# TYPE a counter\na 1.0\n# HELP b B.\n# TYPE b gauge\nb{x="y z"} 2.0\n'
    text = merged({0: one, 1: one.replace(b"1.0", b"3.0")})
    assert text.decode().splitlines() == [
        "# HELP a A.", "# TYPE a counter", 'a{process="0"} 1.0', 'a{process="1"} 3.0',
        "# HELP b B.", "# TYPE b gauge", 'b{process="0",x="y z"} 2.0',
        'b{process="1",x="y z"} 2.0',
    ]  # fmt: skip
