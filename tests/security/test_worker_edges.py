"""A real worker after requests that once ended its engine: it answers 400, and the next request."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.stack import Process, call, idle, running

CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
GOOD = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2, "temperature": 0}}


@pytest.fixture(scope="module")
def worker(model_dir: ModelDir) -> Iterator[Process]:
    with running(model_dir("qwen2_5_vl")) as stack:
        process = stack.start("services.decode")
        process.wait_ready()
        yield process
        idle(process)
        assert set(stack.stop()) == {0}


def sampled(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "sampling_params": {**GOOD["sampling_params"], **fields}}  # type: ignore[dict-item]


BODIES: dict[str, tuple[str, Any, str]] = {
    "n": (GENERATE, sampled(n=10**30), "sampling_params.n"),
    "logit_bias": (GENERATE, sampled(logit_bias={"1000000": 1}), "logit_bias"),
    "stop_token_ids": (
        GENERATE, sampled(stop_token_ids=[1_000_000], min_tokens=1), "stop_token_ids"),
    "logprobs": (GENERATE, sampled(logprobs=10_000), "sampling_params.logprobs"),
    "temperature": (GENERATE, sampled(temperature=-1), "sampling_params.temperature"),
    "min_p": (GENERATE, sampled(min_p=2), "sampling_params.min_p"),
    "priority": (GENERATE, {**GOOD, "priority": 10**30}, "priority"),
    "jumps the queue": (GENERATE, {**GOOD, "priority": -1}, "priority"),
    "emitted": (GENERATE, {**GOOD, "emitted": {"0": [10**6]}}, "emitted"),
    "handle": (
        GENERATE, {**GOOD, "ec_transfer_params": {"a": {"size_bytes": 1 << 70}}},
        "ec_transfer_params"),
    "chat's priority": (
        CHAT, {"messages": [{"role": "user", "content": "x"}], "priority": 10**30}, "priority"),
    "unsigned priority": (
        CHAT, {"messages": [{"role": "user", "content": "x"}], "priority": (1 << 64) - 1},
        "priority"),
    "half a character": ("/abort_requests", b'{"request_ids": ["\\ud800"]}', ""),
    "deep": ("/abort_requests", b"[" * 100_000, ""),
    "version": ("/cache_status", {"latest_cache_version": 10**30}, "latest_cache_version"),
    "tokens": ("/detokenize", {"tokens": [10**30]}, "tokens[0]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_what_is_wrong_is_named_and_the_worker_goes_on(worker: Process, name: str) -> None:
    path, body, param = BODIES[name]
    status, answer = call(worker.url + path, body)
    assert status == 400, answer
    assert (answer["error"]["param"] or "") == param
    status, answer = call(worker.url + GENERATE, GOOD)
    assert status == 200 and len(answer["choices"][0]["token_ids"]) == 2


def test_lower_urgency_is_always_allowed(worker: Process) -> None:
    assert call(worker.url + GENERATE, {**GOOD, "priority": (1 << 63) - 1})[0] == 200
