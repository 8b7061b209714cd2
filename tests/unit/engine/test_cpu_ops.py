"""The fused kernels of CPUs beside the operations that they replace."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Ministral3Config, MistralConfig, PretrainedConfig

from services.engine.attention import numba_runtime
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.model import cpu_ops as cpu_ops_module
from services.engine.model import fused_layers
from services.engine.model.cpu_ops import CpuOps
from services.engine.model.fused_layers import FusedLayers, ops_for
from services.engine.model.language import LanguageModel
from tests.conftest import ModelDir
from tests.support.conversations import asking
from tests.support.engines import engine, request_of, run
from tests.support.fused_cases import EPSILON, own_norm, rotary_case, rotated
from tests.support.paged_cases import of_codes
from tests.support.random_families import built

ROWS = [1, 3, 8, 33]


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    return CpuOps(numba_runtime.team())


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """To a rounding of the last place: sums may be added in another order."""
    assert actual.dtype == expected.dtype == torch.bfloat16
    tolerance = 2 * torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def drawn(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return (4 * torch.randn(shape)).bfloat16()


@pytest.mark.parametrize("rows", ROWS)
def test_norms_equal_the_operations(rows: int, ops: CpuOps) -> None:
    x, residual = drawn(2, rows, 80)
    weight = drawn(80)
    close(ops.rms_norm(x, weight, EPSILON), own_norm(x, weight))
    normed, total = ops.add_rms_norm(x, residual, weight, EPSILON)
    assert torch.equal(total, x + residual)
    close(normed, own_norm(x + residual, weight))


@pytest.mark.parametrize("rows", ROWS)
def test_rows_that_lie_apart_are_read(rows: int, ops: CpuOps) -> None:
    wide = drawn(rows, 100)
    parts = torch.split(wide, [40, 40, 20], dim=-1)
    close(ops.rms_norm(parts[1], wide[0, :40], EPSILON), own_norm(parts[1], wide[0, :40]))
    close(ops.silu_mul(parts[0], parts[1]), F.silu(parts[0]) * parts[1])
    heads = wide.view(rows, 5, 20)[:, 1:3]
    close(ops.rms_norm(heads, wide[0, :20], EPSILON), own_norm(heads, wide[0, :20]))


def test_gates_of_any_size_equal_the_operations(ops: CpuOps) -> None:
    gate = torch.linspace(-200, 200, 4096).bfloat16().view(4, -1)
    close(ops.silu_mul(gate, gate.flip(1)), F.silu(gate) * gate.flip(1))


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "v_dim"), [(4, 2, 16, 16), (3, 1, 20, 12)])
@pytest.mark.parametrize("by_all", [True, False])
def test_rotation_and_write_equal_the_operations(
    by_all: bool,
    heads: int,
    kv_heads: int,
    dim: int,
    v_dim: int,
    ops: CpuOps,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_ops_module, "_ALONE", 0 if by_all else 99)
    case = rotary_case(heads, kv_heads, dim, v_dim, "bfloat16")
    query, key = rotated(case.query, case), rotated(case.key, case)
    expected = case.batch.cache.pool.clone()
    cache = type(case.batch.cache)(case.batch.cache.layout, expected)
    cache.write(case.layer, case.batch.slot_blocks, case.batch.slot_offsets, key, case.value)
    ops.rotate_and_write(
        case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch
    )
    close(case.query, query)
    close(case.batch.cache.pool, expected)


@pytest.mark.parametrize("codes", [INT8, FP8])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "v_dim"), [(4, 2, 16, 16), (3, 1, 20, 12)])
def test_rotated_keys_are_written_as_codes(
    heads: int, kv_heads: int, dim: int, v_dim: int, codes: str, ops: CpuOps
) -> None:
    case = rotary_case(heads, kv_heads, dim, v_dim, "bfloat16", codes=codes)
    cache, place = case.batch.cache, (case.batch.slot_blocks, case.batch.slot_offsets)
    case.value[0, 0, :2] = torch.tensor([0.0, -1e-30])
    case.value[1] = 0.0
    case.value[2, 0] = torch.linspace(-1, 1, v_dim)  # with values halfway between two codes
    query = rotated(case.query, case)
    plain = rotary_case(heads, kv_heads, dim, v_dim, "bfloat16")
    for one in (plain, case):
        ops.rotate_and_write(one.query, one.key, case.value, one.cos, one.sin, one.layer, one.batch)
    close(case.query, query)
    expected = type(cache)(cache.layout, of_codes(plain.batch.cache, codes).pool)
    assert torch.equal(cache.key(case.layer)[place], expected.key(case.layer)[place])
    assert torch.equal(cache.pool, expected.pool)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_read_as_none(value: float, ops: CpuOps) -> None:
    case = rotary_case(4, 2, 16, 16, "bfloat16", codes=INT8)
    case.value[2, 1, 5] = value
    ops.rotate_and_write(
        case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch
    )
    cache = case.batch.cache
    _, values = cache.read(case.layer, case.batch.slot_blocks, torch.float32)
    written = values[torch.arange(len(values)), case.batch.slot_offsets]
    assert not written[2, 1].isfinite().any()
    assert written[[0, 1, 3, 4]].isfinite().all()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3", "llama"])
def test_a_model_in_bfloat16_uses_them_and_gives_the_same_tokens(
    family: str, model_dir: ModelDir
) -> None:
    path = model_dir(family)
    requests = [
        request_of(path, asking(text), text, max_tokens=6, ignore_eos=True)
        for text in ("Hello", "Tell me why")
    ]
    own, fused = (
        engine(path, parts=("language",), dtype="bfloat16", fused_kernels=use)
        for use in (False, True)
    )
    layers = [_layers(one) for one in (own, fused)]
    assert layers[0] == 0 < layers[1]
    assert run(fused, requests) == run(own, requests)


def _layers(worker: Any) -> int:
    return int(worker.generate._runs._runner._model.fused_layers)


def test_other_types_and_machines_without_numba_keep_pytorch(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ops_for("cpu", torch.float32) is None
    assert LanguageModel(model_dir("qwen3"), torch.float32, "cpu").fused_layers == 0
    monkeypatch.setattr("services.engine.attention.numba_runtime.team", lambda: None)
    assert ops_for("cpu", torch.bfloat16) is None


@pytest.mark.parametrize("loaded", [[], ["/usr/lib/libgomp.so.1", "/opt/libiomp5.so"]], ids=len)
def test_an_openmp_that_is_not_known_is_not_used(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    maps = "".join(f"7f00-7f01 r-xp 00000000 fe:00 12  {name}\n" for name in loaded)
    monkeypatch.setattr(Path, "read_text", lambda self: maps)
    with caplog.at_level(logging.WARNING):
        assert numba_runtime.team.__wrapped__() is None
    assert "which OpenMP PyTorch uses is not clear" in caplog.text


def test_pytorchs_own_openmp_is_found_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(torch.__file__).parent / "lib" / "libgomp-a34b3233.so.1")
    lines = [f"7f00-7f01 r-xp 0 fe:00 12 {name}" for name in ("/usr/lib/libgomp.so.1", own, own)]
    monkeypatch.setattr(Path, "read_text", lambda self: "\n".join(lines))
    assert numba_runtime._openmp() == own


def test_a_numba_that_does_not_run_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(parallel: object) -> None:
        raise RuntimeError("no locator")

    monkeypatch.setattr(numba_runtime, "_try", broken)
    with caplog.at_level(logging.WARNING):
        assert numba_runtime.team.__wrapped__() is None
    assert "no locator" in caplog.text


@pytest.mark.parametrize(
    ("config", "count"), [(MistralConfig, 2), (Ministral3Config, 0)], ids=["mistral", "ministral3"]
)
def test_layers_whose_queries_are_scaled_by_position_stay_their_own(
    config: type[PretrainedConfig], count: int, ops: CpuOps
) -> None:
    """The factor is 1 for 16,384 tokens."""
    made = config(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=16, vocab_size=64,
    )  # fmt: skip
    assert len(FusedLayers(AutoModelForCausalLM.from_config(made), ops)) == count


def test_layers_that_differ_at_far_positions_stay_their_own(
    ops: CpuOps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Ministral 3's would if they were not known by name."""
    monkeypatch.setattr(fused_layers, "_scales_by_position", lambda attention: False)
    built("ministral3", max_position_embeddings=1 << 18).save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        model = LanguageModel(tmp_path, torch.bfloat16, "cpu", fused=ops)
    assert model.fused_layers == 0
    assert "fused kernels are not used" in caplog.text
