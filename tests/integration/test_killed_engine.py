"""A decode engine that is killed in the middle of many streams: no client sees anything of it."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, all_up, tokens
from tests.support.conversations import asking, picture
from tests.support.stack import Process, Stack, engine_of, generated, idle, proxy, running
from tests.support.waiting import until

CASES = [asking(picture(number % 2), f"Question {number}?") for number in range(5)]
# So few attempts, and such rare probes, that what a call finds must count at once.
HASTY = (
    "--probe-interval", "3", "--max-retries", "1", "--retry-backoff", "0.01",
    "--breaker-failures", "1000", "--failover-wait", "300",
)  # fmt: skip
LONG = {"max_tokens": 80, "ignore_eos": True}


@dataclass
class Fleet:
    """Workers that each test takes some of, behind a proxy of its own."""

    stack: Stack
    encode: Process
    prefill: Process
    decode: list[Process]
    expected: list[list[int]]


@pytest.fixture(scope="module")
def fleet(model_dir: ModelDir) -> Iterator[Fleet]:
    with running(model_dir("qwen2_5_vl")) as stack:
        encode, prefill, *decode = stack.started("encoder", "prefill", "decode", "decode")
        whole = proxy(stack, [encode], [prefill], decode)
        yield Fleet(stack, encode, prefill, decode, all_tokens(whole, CASES, **LONG))


@pytest.mark.parametrize(
    ("prefills", "decoders"), [(1, 1), (1, 2), (0, 1)], ids=["1E1P1D", "1E1P2D", "1E1PD"]
)
def test_no_stream_ends_with_a_killed_decode_engine(
    fleet: Fleet, prefills: int, decoders: int
) -> None:
    """The only decode worker is started again at its address; without another one that computes
    all streams wait for it."""
    prefill, decode = [fleet.prefill][:prefills], fleet.decode[:decoders]
    server = proxy(fleet.stack, [fleet.encode], prefill, decode, *HASTY)
    until(lambda: all_up(server, 1 + prefills + decoders))
    victim = decode[0]
    begun = generated(victim) + 20
    with ThreadPoolExecutor(len(CASES)) as pool:
        streams = [pool.submit(tokens, server, case, **LONG) for case in CASES]
        until(lambda: generated(victim) > begun)
        os.kill(engine_of(victim), signal.SIGKILL)
        assert victim.process.wait(30) == 1
        if decoders == 1:
            victim.restart()
        assert [stream.result(200) for stream in streams] == fleet.expected
    if decoders > 1:
        victim.restart()
    assert server.stop() == 0
    for worker in (fleet.encode, fleet.prefill, *fleet.decode):
        idle(worker)
