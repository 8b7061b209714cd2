"""Workers that die, stall or do not fit, in the middle of moving tensors: a right answer or one
clear error in time, others undisturbed, nothing left."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import all_up, body_of, tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.raw_peers import RawConsumer
from tests.support.reference import Messages, reference_generate
from tests.support.stack import Process, Stack, call, idle, proxy, running
from tests.support.thinned import thinned
from tests.support.transport_flags import need

TOKENS = 8
LEASE_S = 4.0
BOUND_S = 60.0
PAUSE_S = 0.05
MEMORY = ("shm", "nixl", "ucx")
until = partial(waiting.until, bound_s=BOUND_S)


def through(*kept: str) -> pytest.MarkDecorator:
    """Which fleets a test is for at all times; it is slow for those of other transports."""
    fleets = thinned([(transport,) for transport in MEMORY], lambda one: one in kept)
    return pytest.mark.parametrize("fleet", fleets, indirect=True, scope="module")


def flags(transport: str, **kv: Any) -> tuple[str, ...]:
    """Short deadlines, so that tests need not wait for long ones."""
    ec = {
        "ec_connector": transport,
        "ec_connector_extra_config": {
            "load_timeout_s": LEASE_S, "ec_lease_duration": LEASE_S, "ec_timeout": LEASE_S,
        },
    }  # fmt: skip
    kv = {
        "kv_connector": transport,
        "kv_connector_extra_config": {"kv_lease_duration": LEASE_S, "kv_timeout": LEASE_S},
        **kv,
    }
    return "--ec-transfer-config", json.dumps(ec), "--kv-transfer-config", json.dumps(kv)


@dataclass
class Fleet:
    stack: Stack
    encoders: list[Process]
    prefill: Process
    decode: Process
    stranger: Process
    policy: str
    proxy: Process

    @property
    def workers(self) -> list[Process]:
        return [*self.encoders, self.prefill, self.decode, self.stranger]

    def expected(self, case: Messages) -> list[int]:
        return reference_generate(self.stack.model, case, TOKENS, ignore_eos=True)

    def ask(self, case: Messages) -> list[int]:
        return tokens(self.proxy, case, max_tokens=TOKENS, ignore_eos=True)

    def failures(self, process: Process) -> dict[str, int]:
        """Failed transfers by cause, over both connectors."""
        report = call(f"{process.url}/integrity")[1]["transfers"]
        return {cause: n for one in report for cause, n in one["failures"].items()}


def started(stack: Stack, transport: str) -> Fleet:
    """A decode worker whose KV blocks have another size gets no request."""
    common, policy = flags(transport), "fail" if transport == "shm" else "recompute"
    other = flags(transport, kv_load_failure_policy=policy)
    encoders = [stack.start("services.encoder", *common) for _ in range(2)]
    prefill, decode, stranger = workers = [
        stack.start("services.prefill", *common, "--max-num-batched-tokens", "96"),
        stack.start("services.decode", *common),
        stack.start("services.decode", *other, "--block-size", "32"),
    ]
    for worker in (*encoders, *workers):
        worker.wait_ready()
    server = proxy(stack, encoders, [prefill], [decode])
    return Fleet(stack, encoders, prefill, decode, stranger, policy, server)


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, model_dir: ModelDir) -> Iterator[Fleet]:
    need(request.param)
    with running(model_dir("qwen2_5_vl")) as stack:
        fleet = started(stack, request.param)
        yield fleet
        for worker in fleet.workers:
            idle(worker)
        assert set(stack.stop()) == {0}
        assert not stack.segments.exists()


class Others:
    """Requests that have nothing to do with a fault, one after the other while it happens."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._case = asking("Hello")
        self._stop = threading.Event()
        self.answers: list[list[int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.answers.append(self._fleet.ask(self._case))
            self._stop.wait(PAUSE_S)

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()
        expected = self._fleet.expected(self._case)
        assert self.answers and all(answer == expected for answer in self.answers)


def up(fleet: Fleet) -> None:
    """Wait until the proxy counts on every worker again."""
    until(lambda: all_up(fleet.proxy))


@through("shm", "nixl")
def test_an_encoder_killed_under_its_requests(fleet: Fleet) -> None:
    """No request waits until its death is known: its pictures go to the other one."""
    cases = [asking(picture(seed), "What is in this image?") for seed in range(700, 704)]
    expected = [fleet.expected(case) for case in cases]
    with Others(fleet):
        fleet.encoders[0].kill()
        assert [fleet.ask(case) for case in cases] == expected
    fleet.encoders[0].restart()
    up(fleet)


@through("shm")
def test_an_encoder_that_stalls(fleet: Fleet) -> None:
    """Its pictures are encoded elsewhere once its silence is noticed."""
    cases = [asking(picture(seed), "What is in this image?") for seed in range(710, 713)]
    expected = [fleet.expected(case) for case in cases]
    began = time.monotonic()
    with Others(fleet):
        fleet.encoders[1].process.send_signal(signal.SIGSTOP)
        try:
            assert [fleet.ask(case) for case in cases] == expected
        finally:
            fleet.encoders[1].process.send_signal(signal.SIGCONT)
    assert time.monotonic() - began < BOUND_S
    up(fleet)


@through("shm", "ucx")
def test_a_prefill_engine_that_stalls_before_its_kv_is_read(fleet: Fleet) -> None:
    """Decode computes the KV itself."""
    case = asking(LONG, LONG)
    expected = fleet.expected(case)
    body = body_of(case, max_tokens=1, ignore_eos=True)
    status, answer = call(
        f"{fleet.prefill.url}/v1/chat/completions",
        {**body, "kv_transfer_params": {"do_remote_decode": True}},
    )
    assert status == 200
    engine = fleet.prefill.engine_pid
    os.kill(engine, signal.SIGSTOP)
    try:
        again = {**body, "max_tokens": TOKENS, "kv_transfer_params": answer["kv_transfer_params"]}
        status, answer = call(f"{fleet.decode.url}/v1/chat/completions", again)
    finally:
        os.kill(engine, signal.SIGCONT)
    assert status == 200
    assert answer["choices"][0]["token_ids"] == expected
    assert fleet.failures(fleet.decode)
    # Its worker may not have noticed yet that the engine goes on.
    until(lambda: call(f"{fleet.prefill.url}/integrity")[0] == 200)
    idle(fleet.prefill, BOUND_S)


@through("shm", "ucx")
def test_a_decode_worker_killed_while_its_kv_waits(fleet: Fleet) -> None:
    """Prefill gets its blocks back when the lease lapses."""
    case = asking(LONG)
    status, answer = call(
        f"{fleet.prefill.url}/v1/chat/completions",
        {**body_of(case, max_tokens=1), "kv_transfer_params": {"do_remote_decode": True}},
    )
    assert status == 200 and answer["kv_transfer_params"]
    fleet.decode.kill()
    report = idle(fleet.prefill, BOUND_S)
    (kv,) = [one for one in report["transfers"] if one["connector"] == "kv"]
    assert kv["leases_expired"] > 0
    assert kv["bytes_held"] == 0
    fleet.decode.restart()
    up(fleet)
    assert fleet.ask(case) == fleet.expected(case)


@through("shm", "ucx")
def test_a_prefill_worker_killed_under_its_requests(fleet: Fleet) -> None:
    """Decode does both, and everything works again once it is back."""
    case = asking(picture(720), "What is in this image?", LONG)
    expected = fleet.expected(case)
    fleet.prefill.kill()
    assert fleet.ask(case) == expected
    fleet.prefill.restart()
    up(fleet)
    assert fleet.ask(case) == expected


@through(*MEMORY)
@pytest.mark.parametrize("how", ["layout", "garbage"])
def test_a_stranger_on_the_side_channel(fleet: Fleet, how: str) -> None:
    """Another layout is refused before a byte is read, in words that name both, and noise is
    counted; then as the policy says."""
    case = asking(LONG, LONG)
    status, answer = call(
        f"{fleet.prefill.url}/v1/chat/completions",
        {**body_of(case, max_tokens=1), "kv_transfer_params": {"do_remote_decode": True}},
    )
    assert status == 200
    params = answer["kv_transfer_params"]
    if how == "garbage":
        raw = RawConsumer(params["remote_port"])
        for frames in ((b"noise",), (b"", b"\x80"), (b"\xff" * 5000,)):
            raw.send(*frames)
        until(lambda: refused(fleet.prefill) == 3)
        raw.close()
        assert fleet.ask(case) == fleet.expected(case)
    else:
        body = body_of(case, max_tokens=TOKENS, ignore_eos=True, kv_transfer_params=params)
        status, answer = call(f"{fleet.stranger.url}/v1/chat/completions", body)
        if fleet.policy == "fail":
            assert status == 503 and answer["error"]["code"] == "incompatible_peer", answer
        else:
            assert status == 200, answer
            assert answer["choices"][0]["token_ids"] == fleet.expected(case)
        assert set(fleet.failures(fleet.stranger)) == {"incompatible_peer"}
        until(lambda: "needs the layout" in "".join(fleet.stranger.log))
    call(f"{fleet.prefill.url}/abort_requests", {"request_ids": [params["remote_request_id"]]})


def refused(process: Process) -> int:
    (kv,) = [
        one for one in call(f"{process.url}/integrity")[1]["transfers"] if one["connector"] == "kv"
    ]
    return int(kv["refused"])
