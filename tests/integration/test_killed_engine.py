"""A decode engine that is killed in the middle of many streams: no client sees anything of it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, all_up, tokens
from tests.support.conversations import asking, picture
from tests.support.stack import engine_of, generated, idle, proxy, running
from tests.support.waiting import until

CASES = [asking(picture(number % 3), f"Question {number}?") for number in range(11)]
# So few attempts, and such rare probes, that what a call finds must count at once.
HASTY = (
    "--probe-interval", "3", "--max-retries", "1", "--retry-backoff", "0.01",
    "--breaker-failures", "1000", "--failover-wait", "300",
)  # fmt: skip
LONG = {"max_tokens": 150, "ignore_eos": True}


@pytest.mark.parametrize(
    ("prefills", "decoders"), [(1, 1), (1, 2), (0, 1)], ids=["1E1P1D", "1E1P2D", "1E1PD"]
)
def test_no_stream_ends_with_a_killed_decode_engine(
    model_dir: ModelDir, prefills: int, decoders: int
) -> None:
    """The only decode worker is started again at its address; without another one that computes
    all streams wait for it."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode = stack.start("services.encoder")
        prefill = [stack.start("services.prefill") for _ in range(prefills)]
        decode = [stack.start("services.decode") for _ in range(decoders)]
        for worker in (encode, *prefill, *decode):
            worker.wait_ready()
        server = proxy(stack, [encode], prefill, decode, *HASTY)
        until(lambda: all_up(server, 1 + prefills + decoders))
        expected = all_tokens(server, CASES, **LONG)
        victim = decode[0]
        begun = generated(victim) + 20
        with ThreadPoolExecutor(len(CASES)) as pool:
            streams = [pool.submit(tokens, server, case, **LONG) for case in CASES]
            until(lambda: generated(victim) > begun)
            os.kill(engine_of(victim), signal.SIGKILL)
            assert victim.process.wait(30) == 1
            if decoders == 1:
                victim.restart()
            assert [stream.result(200) for stream in streams] == expected
        for worker in (encode, *prefill, decode[-1]):
            idle(worker)
