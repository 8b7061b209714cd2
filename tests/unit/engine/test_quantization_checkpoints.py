"""Checkpoints that are quantized: tokens equal those of transformers with the same files, or one
clear line says what is missing."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from protocol.errors import ConfigError
from services.engine.model.language import LanguageModel
from tests.conftest import ModelDir
from tests.support.conversations import text_cases
from tests.support.engines import at_once, engine
from tests.support.quantized_models import by_torchao, compressed, in_fp8_blocks, says
from tests.support.reference import load

TOKENS = 10
FAMILY = "qwen3"
installed = {
    name: importlib.util.find_spec(name) is not None
    for name in ("accelerate", "compressed_tensors", "optimum", "torchao")
}


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not installed[name], reason="needs the extra quant")


def expected(path: Path, **options: Any) -> list[list[int]]:
    """By transformers, which reads the same files."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval()
    model.generation_config.eos_token_id = None
    reference = replace(load(path), model=model)
    return [
        reference.generate(reference.inputs(case), TOKENS, ignore_eos=True) for case in text_cases()
    ]


@pytest.mark.parametrize(
    ("make", "dense", "layout"),
    [
        pytest.param(make, dense, layout, marks=[needs(library), *slow], id=f"{name}-{layout}")
        for name, make, dense, library, usual in (
            ("compressed-tensors", compressed, True, "compressed_tensors", "packed"),
            ("fp8", in_fp8_blocks, True, "accelerate", "plain"),
            ("torchao", by_torchao, False, "torchao", "packed"),
        )
        for layout in ("plain", "packed")
        for slow in ([] if layout == usual else [pytest.mark.slow],)
    ],
)
def test_tokens_equal_transformers_of_the_same_files(
    make: Callable[[Path, Path], Path],
    dense: bool,
    layout: str,
    model_dir: ModelDir,
    tmp_path: Path,
) -> None:
    model = model_dir(FAMILY)
    path = make(model, tmp_path / "quantized")
    worker, whole = engine(path, weight_layout=layout), engine(model)
    assert at_once(worker, path, text_cases(), TOKENS) == expected(path)
    bytes_of = [one.parameter_bytes["language"] for one in (worker, whole)]
    assert bytes_of[0] == bytes_of[1] if dense else bytes_of[0] < bytes_of[1] / 2
    worker.close()
    whole.close()


@needs("compressed_tensors")
def test_inputs_of_dense_layers_are_not_quantized(model_dir: ModelDir, tmp_path: Path) -> None:
    """W8A8: equal to transformers where it decompresses on loading."""
    from transformers import CompressedTensorsConfig

    path = compressed(model_dir(FAMILY), tmp_path / "quantized", activations=True)
    worker = engine(path)
    dense = expected(path, quantization_config=CompressedTensorsConfig(dequantize=True))
    assert at_once(worker, path, text_cases(), TOKENS) == dense
    worker.close()


@needs("compressed_tensors")
def test_layers_of_several_schemes_stay_as_the_library_has_them(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """Their inputs are quantized, so they are not packed."""
    path = compressed(model_dir(FAMILY), tmp_path / "quantized", activations=True)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"Linear"', '"re:.*mlp.*"', 1))
    _add_group(config, "re:.*self_attn.*")
    layers = [
        dict(LanguageModel(path, torch.float32, "cpu", layout).module.named_modules())
        for layout in ("plain", "packed")
    ]
    names = [name for name in layers[0] if name.endswith("_proj")]
    assert len(names) == 14
    assert all(type(found[name]) is torch.nn.Linear for found in layers for name in names)


def _add_group(file: Path, target: str) -> None:
    config = json.loads(file.read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["group_1"] = {**groups["group_0"], "targets": [target]}
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"quant_method": "gptq", "bits": 4}, "optimum"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "homemade"}, "transformers does not know"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    form: dict[str, Any], why: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    if installed["optimum"]:
        pytest.skip("a library is installed that is to be missing")
    path = says(model_dir(FAMILY), tmp_path / "model", **form)
    assert why in refused(path)
    assert form["quant_method"] in refused(path)


@pytest.mark.parametrize(
    ("form", "module", "asks"),
    [
        (
            {"quant_method": "compressed-tensors", "config_groups": {}},
            "quantizer_compressed_tensors",
            "is_compressed_tensors_available",
        ),
        ({"quant_method": "fp8"}, "quantizer_finegrained_fp8", "is_accelerate_available"),
    ],
)
def test_a_library_of_the_extra_that_is_missing(
    form: dict[str, Any], module: str, asks: str, model_dir: ModelDir, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Here it may be installed, so transformers is told that it is not."""
    monkeypatch.setattr(f"transformers.quantizers.{module}.{asks}", lambda *_: False)
    path = says(model_dir(FAMILY), tmp_path / "model", **form)
    library = asks.removeprefix("is_").removesuffix("_available")
    assert library.replace("_", "-") in refused(path)


def refused(path: Path) -> str:
    """What the error says, in one line."""
    with pytest.raises(ConfigError, match=r"^--model: ") as caught:
        LanguageModel(path, torch.float32, "cpu")
    assert "\n" not in caught.value.message
    return caught.value.message
