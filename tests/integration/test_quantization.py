"""Quantized weights through real processes: the tokens of transformers with the same weights
quantized; a scheme that does not exist is refused."""

import importlib.util

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_tokens
from tests.support.conversations import LONG, asking, picture
from tests.support.quantized_models import quantized_generate
from tests.support.stack import idle, proxy, running

TOKENS = 12
CASES = [asking(picture(1), "What is in this image?"), asking(LONG)]


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
def test_tokens_of_int8_weights_are_those_of_transformers(model_dir: ModelDir) -> None:
    path = model_dir("qwen2_5_vl")
    expected = quantized_generate(path, "int8", CASES, TOKENS)
    with running(path) as stack:
        encode = stack.start("services.encoder")
        prefill, decode = (
            stack.start(f"services.{name}", "--quantization", "int8")
            for name in ("prefill", "decode")
        )
        for worker in (encode, prefill, decode):
            worker.wait_ready()
        server = proxy(stack, [encode], [prefill], [decode])
        assert all_tokens(server, CASES, max_tokens=TOKENS, ignore_eos=True) == expected
        assert idle(decode)["counters"]["kv_fetched"] == len(CASES)
        for worker in (encode, prefill):
            idle(worker)


def test_an_unknown_scheme_is_refused_at_the_start(model_dir: ModelDir) -> None:
    with running(model_dir("qwen3")) as stack:
        status, lines = stack.start("services.decode", "--quantization", "nonsense").refusal()
    assert status == 2
    assert lines == ["error: --quantization: 'nonsense' is not one of none, int8, fp8, int4"]
