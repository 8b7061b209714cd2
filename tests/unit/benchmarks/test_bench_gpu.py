"""What `benchmarks.bench_gpu` compares with, on a CPU and a small model."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from benchmarks import bench_gpu
from benchmarks.step_time.device import Shape, Steps
from services.engine.config import Part
from services.engine.model.loader import load_part, parameter_bytes
from tests.conftest import ModelDir


def test_every_row_is_made(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_gpu, "SIZE", (160, 90))
    file = tmp_path / "rows.json"
    given = ["--quick", "--device", "cpu", "--model", str(model_dir("qwen2_5_vl"))]
    bench_gpu.main([*given, "--json", str(file)])
    rows = json.loads(file.read_text())
    assert [row["name"] for row in rows] == [
        "decode, batch 1, context 64, ms",
        "decode, batch 2, context 64, ms",
        "prefill, batch 1, 64 tokens after 0, ms",
        "1 pictures of 160x90 in one run, ms",
        "2 pictures of 160x90 in one run, ms",
    ]
    assert all(row["ours"] > 0 for row in rows)
    assert all((row["peer"] is None) == ("pictures" in row["name"]) for row in rows)


def test_the_model_that_is_made_has_the_size_of_the_real_one(tmp_path: Path) -> None:
    config = json.loads((bench_gpu.BASE / "config.json").read_text())
    config["text_config"] |= bench_gpu.SIZES["3b"].text
    config["vision_config"] |= bench_gpu.SIZES["3b"].vision
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(tmp_path))
    parameters = sum(p.numel() for p in model.parameters())
    table = 0 if model.config.tie_word_embeddings else model.lm_head.weight.numel()
    assert parameters - table == pytest.approx(3.75e9, rel=0.02)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3", "qwen2_vl"])
def test_a_decode_step_reads_each_weight_once_but_the_table_of_embeddings(
    family: str, model_dir: ModelDir
) -> None:
    part: Part = "language"
    model = load_part(model_dir(family), part, torch.float32, "cpu")
    layers = [p for name, p in model.named_parameters() if "embed_tokens" not in name]
    body = sum(p.nbytes for p in layers if p.data_ptr() != model.lm_head.weight.data_ptr())
    steps = Steps(model_dir(family), "float32", "cpu", [Shape(1, 16)])
    assert steps.body_bytes == body
    assert steps.head_bytes == model.lm_head.weight.nbytes
    assert steps.body_bytes + steps.head_bytes <= parameter_bytes(model)


def test_rates_are_counted_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_gpu, "median_ms", lambda *_: 2.0)
    device = torch.device("cpu")
    assert bench_gpu.copy_rate(device, 4, 1) == 4 << 20
    assert bench_gpu.matmul_rate(device, torch.float32, 8, 1) == 8**3
