"""A decode engine that is killed in the middle of many streams: no client sees anything of it."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens, all_up, tokens
from tests.support.conversations import asking, picture
from tests.support.stack import call, engine_of, idle, proxy, running
from tests.support.waiting import until

CASES = [asking(picture(number % 3), f"Question {number}?") for number in range(11)]
LONG = {"max_tokens": 150, "ignore_eos": True}


@pytest.mark.parametrize("decoders", [1, 2], ids=["started-again", "another"])
def test_no_stream_ends_with_a_killed_decode_engine(model_dir: ModelDir, decoders: int) -> None:
    """1E1P1D, whose worker is started again at its address, and 1E1P2D."""
    with running(model_dir("qwen2_5_vl")) as stack:
        encode, prefill = stack.start("services.encoder"), stack.start("services.prefill")
        decode = [stack.start("services.decode") for _ in range(decoders)]
        for worker in (encode, prefill, *decode):
            worker.wait_ready()
        server = proxy(stack, [encode], [prefill], decode)
        until(lambda: all_up(server, 2 + decoders))
        expected = all_tokens(server, CASES, **LONG)
        victim = decode[0]
        with ThreadPoolExecutor(len(CASES)) as pool:
            streams = [pool.submit(tokens, server, case, **LONG) for case in CASES]
            begun = call(f"{victim.url}/integrity")[1]["counters"]["generation_tokens"] + 20
            until(
                lambda: call(f"{victim.url}/integrity")[1]["counters"]["generation_tokens"] > begun
            )
            os.kill(engine_of(victim), signal.SIGKILL)
            assert victim.process.wait(30) == 1
            if decoders == 1:
                victim.restart()
            assert [stream.result(60) for stream in streams] == expected
        for worker in (encode, prefill, decode[-1]):
            idle(worker)
