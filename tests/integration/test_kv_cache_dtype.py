"""E+P+D and E+PD with a KV cache of codes, through real processes: the tokens of transformers with
such a cache; workers of another kind are found out."""

import time

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens
from tests.support.coded_kv import coded_generate
from tests.support.conversations import LONG, asking, picture
from tests.support.stack import call, idle, proxy, running
from tests.support.thinned import diagonal

TOKENS = 8
DEADLINE_S = 10.0
CASES = [
    asking(picture(1), "What is in this image?"),
    asking(picture(2), "First this,", picture(3, 320, 200), "then that.", picture(1), LONG),
    asking(LONG),
]


@pytest.mark.parametrize(
    ("kind", "other"),
    diagonal((("int8", "int8"), ("fp8", "fp8_e4m3")), ("e+pd", "one process")),
)
def test_tokens_are_those_of_one_process(
    kind: tuple[str, str], other: str, model_dir: ModelDir
) -> None:
    """In E+P+D and in another topology."""
    path, (flag, codes) = model_dir("qwen2_5_vl"), kind
    expected = [coded_generate(path, case, TOKENS, codes) for case in CASES]
    with running(path) as stack:
        names = ("encoder", "prefill", "decode", *(["pdfusion"] if other == "one process" else []))
        workers = [stack.start(f"services.{name}", "--kv-cache-dtype", flag) for name in names]
        for worker in workers:
            worker.wait_ready()
        encode, prefill, decode, *fusion = workers
        apart = proxy(stack, [encode], [prefill], [decode])
        assert all_tokens(apart, CASES, max_tokens=TOKENS, ignore_eos=True) == expected
        assert idle(decode)["counters"]["kv_fetched"] == len(CASES)
        assert call(f"{decode.url}/reset_prefix_cache", {})[0] == 200
        (server,) = fusion or [proxy(stack, [encode], [], [decode])]
        assert all_tokens(server, CASES, max_tokens=TOKENS, ignore_eos=True) == expected
        assert idle(decode)["counters"]["kv_fetched"] == len(CASES)
        for worker in workers:
            idle(worker)


def test_an_operator_hears_of_workers_that_cannot_share_kv(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        prefill = stack.start("services.prefill", "--kv-cache-dtype", "int8")
        decode = stack.start("services.decode")
        for worker in (prefill, decode):
            worker.wait_ready()
        server = proxy(stack, [], [prefill], [decode])
        (tokens,) = all_tokens(server, [asking(LONG)], max_tokens=TOKENS, ignore_eos=True)
        assert len(tokens) == TOKENS, "it is served all the same"
        assert idle(decode)["counters"]["kv_fetched"] == 0
        deadline = time.monotonic() + DEADLINE_S
        while not any("can hand no KV" in line for line in server.log):
            assert time.monotonic() < deadline, server.log
            time.sleep(0.02)
        said = next(line for line in server.log if "can hand no KV" in line)
        assert "--kv-cache-dtype" in said


def test_an_unknown_kind_is_refused_at_the_start(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        worker = stack.start("services.decode", "--kv-cache-dtype", "int4")
        status, lines = worker.refusal()
        assert status != 0
        assert any("--kv-cache-dtype" in line and "int4" in line for line in lines)
