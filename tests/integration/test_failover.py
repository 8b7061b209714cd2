"""The proxy before two mock workers of each role, one of which misbehaves: the client sees the
same tokens as if nothing had happened, and nothing is left behind."""

import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import body_of
from tests.support.conversations import asking, picture
from tests.support.stack import Process, Stack, call, idle, proxy, running

TOKENS = 24
PATIENCE = (
    "--prefill-timeout", "1", "--first-token-timeout", "1", "--stall-timeout", "1",
    "--encode-timeout", "1", "--video-timeout", "0.5", "--breaker-cooldown", "0.5",
)  # fmt: skip
ROLES = ("encode", "prefill", "decode")


@dataclass
class Fleet:
    workers: dict[str, list[Process]]
    proxy: Process

    def spoil(self, role: str, **rule: Any) -> None:
        """The next answer of each worker in this role goes wrong."""
        for worker in self.workers[role]:
            assert call(f"{worker.url}/faults", {"count": 1, **rule})[0] == 200

    def mend(self) -> None:
        for workers in self.workers.values():
            for worker in workers:
                call_delete(f"{worker.url}/faults")
        self.up()

    def up(self) -> None:
        deadline = time.monotonic() + 20
        while any(
            state != "up"
            for role in ROLES
            for state in call(f"{self.proxy.url}/health")[1][role].values()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def call_delete(url: str) -> None:
    import urllib.request

    urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=5).close()


def mock(stack: Stack, role: str, *flags: str) -> Process:
    return stack.start(
        "services.mock", "--role", role, "--speed", "20", "--log-level", "warning", *flags
    )


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        encode = [mock(stack, "encode") for _ in range(2)]
        asks = ("--encode-servers-urls", ",".join(e.wait_ready() for e in encode))
        prefill = [mock(stack, "prefill", *asks) for _ in range(2)]
        decode = [mock(stack, "decode", *asks) for _ in range(2)]
        for worker in (*prefill, *decode):
            worker.wait_ready()
        workers = {"encode": encode, "prefill": prefill, "decode": decode}
        yield Fleet(workers, proxy(stack, encode, prefill, decode, *PATIENCE))
        for worker in (*encode, *prefill, *decode):
            idle(worker)


def streamed(fleet: Fleet, body: dict[str, Any]) -> dict[int, list[int]]:
    """Token ids of every choice; the stream is whole, counted and without an error."""
    import urllib.request

    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{fleet.proxy.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        events = [e.removeprefix("data: ") for e in response.read().decode().split("\n\n") if e]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert not any("error" in chunk for chunk in chunks), chunks[-1]
    found: dict[int, list[int]] = {}
    ended: list[int] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            found.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
            ended += [choice["index"]] * (choice.get("finish_reason") is not None)
    assert sorted(ended) == sorted(found)
    assert chunks[-1]["usage"]["completion_tokens"] == sum(map(len, found.values()))
    assert len({chunk["id"] for chunk in chunks}) == 1
    return found


def question(name: str, **params: Any) -> dict[str, Any]:
    case = asking(picture(sum(map(ord, name))), f"What is {name}?")
    return body_of(case, **{"max_tokens": TOKENS, "ignore_eos": True, **params})


FIRST = ("error", "drop", "garbage", "half_json", "content_type", "hang")
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("encode", {"kind": kind}) for kind in FIRST),
    *(("prefill", {"kind": kind}) for kind in (*FIRST, "wrong_handle", "wrong_count")),
    *(("decode", {"kind": kind}) for kind in FIRST),
    *(
        ("decode", {"kind": kind, "after_tokens": 9})
        for kind in ("error", "drop", "garbage", "half_json", "hang", "no_end", "no_done")
    ),
]


SAMPLED: list[tuple[str, dict[str, Any]]] = [
    ("greedy", {}), ("drawn", {"temperature": 1, "seed": 3, "n": 2}),
]  # fmt: skip


def combined() -> list[Any]:
    """Each fault with each way of sampling, of which every other one is slow."""
    ways = itertools.product(enumerate(CASES), enumerate(SAMPLED))
    return [
        pytest.param(
            *case, params, id="-".join([case[0], *map(str, case[1].values()), name]),
            marks=() if (place + turn) % 2 == 0 else pytest.mark.slow,
        )
        for (place, case), (turn, (name, params)) in ways
    ]  # fmt: skip


@pytest.mark.parametrize(("role", "rule", "params"), combined())
def test_a_fault_is_not_seen_by_the_client(
    fleet: Fleet, role: str, rule: dict[str, Any], params: dict[str, Any]
) -> None:
    body = question(f"{role} {sorted(rule.items())}", **params)
    expected = streamed(fleet, body)
    assert len(expected[0]) == TOKENS and len(expected) == params.get("n", 1)
    fleet.spoil(role, **rule)
    assert streamed(fleet, body) == expected
    fleet.mend()


def test_a_worker_that_dies_under_many_streams(fleet: Fleet) -> None:
    """Those it had go on at the other one; it is used again once it is back."""
    bodies = [question(f"stream {number}", max_tokens=120) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        expected = list(pool.map(lambda body: streamed(fleet, body), bodies))
        for role in ROLES:
            victim = fleet.workers[role][0]
            again = [pool.submit(streamed, fleet, body) for body in bodies]
            time.sleep(0.1)
            victim.kill()
            assert [one.result() for one in again] == expected, role
            victim.restart()
            fleet.up()


def test_a_prefill_worker_that_restarts_unseen_keeps_nothing(fleet: Fleet) -> None:
    """It answers before any probe has seen the restart; decode has asked the engine before it."""
    bodies = [question(f"unseen {number}", max_tokens=24) for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        expected = list(pool.map(lambda body: streamed(fleet, body), bodies))
        for victim in fleet.workers["prefill"]:
            victim.kill()
            victim.restart()
            assert list(pool.map(lambda body: streamed(fleet, body), bodies)) == expected
            for worker in fleet.workers["prefill"]:
                idle(worker)
            fleet.up()


@pytest.fixture(autouse=True)
def log_if_failed(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[None]:
    yield
    print("".join(fleet.proxy.log[-40:]))
