"""Quantized weights: tokens equal those of transformers with the same weights quantized."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from services.engine.model.packed_linear import packable
from services.engine.model.quantization import Int8Linear, quantize, stored_bytes
from tests.conftest import ModelDir
from tests.support.conversations import picture_cases, text_cases
from tests.support.engines import engine, request_of, run
from tests.support.lora import merged_generate, write_adapter
from tests.support.quantized_models import quantized_generate
from tests.support.random_families import HEADS, built
from tests.support.tiny_models import TEXT_FAMILIES

TOKENS = 10
with_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="needs the extra quant"
)


@with_torchao
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2_5_vl"])
def test_tokens_equal_the_quantized_models(family: str, scheme: str, model_dir: ModelDir) -> None:
    path = model_dir(family)
    cases = text_cases() if family in TEXT_FAMILIES else picture_cases()
    worker = engine(path, quantization=scheme, max_num_batched_tokens=64)
    requests = [
        request_of(path, case, f"r{i}", max_tokens=TOKENS, ignore_eos=True)
        for i, case in enumerate(cases)
    ]
    tokens = run(worker, requests)
    assert [tokens[f"r{i}", 0] for i in range(len(cases))] == quantized_generate(
        path, scheme, cases, TOKENS
    )
    whole = engine(path)
    assert worker.parameter_bytes["language"] < whole.parameter_bytes["language"]
    worker.close()
    whole.close()


@with_torchao
def test_an_adapter_beside_quantized_weights(model_dir: ModelDir, tmp_path: Path) -> None:
    """It is added in full precision; another sum than that of merged weights, so of one token."""
    path = model_dir("qwen3")
    folder = write_adapter(path, tmp_path / "a", seed=1, strength=1.0)
    worker = engine(path, quantization="int8", max_loras=1, lora_modules={"a": str(folder)})
    for case in text_cases():
        generate, encode = request_of(path, case, "r", max_tokens=1, ignore_eos=True)
        generate.model = "a"
        assert run(worker, [(generate, encode)])["r", 0] == merged_generate(path, folder, case, 1)
    worker.close()


@with_torchao
@pytest.mark.parametrize("rows", [1, 16, 17])
@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_by_the_integers_themselves(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96, bias=bias, dtype=torch.bfloat16))
    whole = copy.deepcopy(model)
    quantize(model, "int8", torch.bfloat16, "cpu")
    assert isinstance(model[0], Int8Linear)
    x = torch.randn(1, rows, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(model(x), whole(x), atol=0.03, rtol=0.03)


@with_torchao
def test_an_engine_in_bfloat16(model_dir: ModelDir, tmp_path: Path) -> None:
    """Its start compares logits; adapters find the layers."""
    path = model_dir("qwen3")
    folder = write_adapter(path, tmp_path / "a", seed=1, strength=1.0)
    options: dict[str, Any] = {"max_loras": 1, "lora_modules": {"a": str(folder)}}
    worker = engine(path, quantization="int8", dtype="bfloat16", **options)
    answers = {}
    for name in ("", "a"):
        generate, encode = request_of(path, text_cases()[0], "r", max_tokens=4, ignore_eos=True)
        generate.model = name
        answers[name] = run(worker, [(generate, encode)])["r", 0]
    assert answers["a"] != answers[""]
    assert answers["a"][0] == merged_generate(path, folder, text_cases()[0], 1)[0]
    worker.close()


@with_torchao
@pytest.mark.parametrize(("scheme", "bits"), [("int8", 8), ("fp8", 8)])
def test_weights_take_so_many_bits(scheme: str, bits: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512, bias=False))
    x = torch.randn(3, 256)
    expected = model(x)
    assert quantize(model, scheme, torch.float32, "cpu") == 1
    weight = model[0].get_parameter("weight")
    scales = 4 * 512
    assert 256 * 512 * bits // 8 <= stored_bytes(weight) <= 256 * 512 * bits // 8 + 2 * scales
    error = (model(x) - expected).norm() / expected.norm()
    assert 0 < error < 0.05


@with_torchao
@pytest.mark.parametrize(("family", "head"), HEADS.items())
def test_a_head_of_any_name_stays_as_it_is(family: str, head: str) -> None:
    model = built(family)
    quantize(model, "int8", torch.float32, "cpu")
    whole = {name for name, module in model.named_modules() if packable(module)}
    assert head in whole
    assert not [name for name in whole if "layers." in name]


def test_what_cannot_be_done_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs torchao: pip install 'triptych\[worker,quant\]'"):
        quantize(model, "int8", torch.float32, "cpu")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="int4: needs a GPU and --dtype bfloat16, not cpu"):
        quantize(model, "int4", torch.bfloat16, "cpu")
    with pytest.raises(ConfigError, match="no linear layers"):
        quantize(torch.nn.Sequential(), "int8", torch.float32, "cpu")
