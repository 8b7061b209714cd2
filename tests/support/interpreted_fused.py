"""The fused kernels in Triton's interpreter, on the CPU, against the operations they replace.

Not collected by itself: `tests/unit/engine/test_interpreted_kernels.py` runs it with
TRITON_INTERPRET=1 in a process of its own, since kernels are made for the interpreter or for a
device on import.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from connectors.base import EC_TENSOR
from protocol.types import EncodeItem
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.triton_backend import TritonAttention
from services.engine.attention.triton_plan import SplitPlan
from services.engine.model import fused_ops
from services.engine.model.fused_layers import FusedLayers
from services.engine.model.fused_ops import add_rms_norm, rms_norm, rotate_and_write, silu_mul
from services.engine.model.fused_vision import fuse
from services.engine.model.language import LanguageModel
from services.engine.model.trial import TOLERANCE
from services.engine.model.vision import VisionModel
from tests.conftest import ModelDir
from tests.support.conversations import asking, picture
from tests.support.engines import engine, png, request_of, run
from tests.support.fused_cases import EPSILON, own_norm, rotary_case, rotated
from tests.support.replayed_steps import Rerun, use

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """To a rounding of the last place: sums may be added in another order."""
    tolerance = 2e-6 if actual.dtype is torch.float32 else 2 * torch.finfo(actual.dtype).eps
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (3, 80), (5, 64), (2, 3, 20)])
def test_norms_equal_the_operations(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(2, *shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype)
    close(rms_norm(x, weight, EPSILON), own_norm(x, weight))
    normed, total = add_rms_norm(x, residual, weight, EPSILON)
    # The interpreter cuts bfloat16 off where a GPU rounds.
    assert dtype is torch.bfloat16 or torch.equal(total, x + residual)
    close(total, x + residual)
    close(normed, own_norm(x + residual, weight))


def test_a_norm_reads_rows_that_lie_apart() -> None:
    torch.manual_seed(0)
    wide, weight = torch.randn(4, 50), torch.randn(20)
    close(rms_norm(wide[:, 7:27], weight, EPSILON), own_norm(wide[:, 7:27], weight))
    heads = wide[:, 5:45].view(4, 2, 20)
    close(rms_norm(heads, weight, EPSILON), own_norm(heads, weight))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(1, 7), (2, 2048), (3, 2100)])
def test_gates_equal_the_operations(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up = (4 * torch.randn(shape[0], 2 * shape[1])).to(dtype).chunk(2, dim=-1)
    close(silu_mul(gate, up), F.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "v_dim"), [(4, 2, 16, 16), (3, 1, 20, 12)])
def test_rotation_and_write_equal_the_operations(
    heads: int, kv_heads: int, dim: int, v_dim: int, dtype: str
) -> None:
    case = rotary_case(heads, kv_heads, dim, v_dim, dtype)
    query, key = rotated(case.query, case), rotated(case.key, case)
    expected = case.batch.cache.pool.clone()
    cache = type(case.batch.cache)(case.batch.cache.layout, expected)
    slots = case.batch.slot_blocks, case.batch.slot_offsets
    cache.write(case.layer, *slots, key, case.value)
    rotate_and_write(case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch)
    close(case.query, query)
    close(case.batch.cache.pool, expected)


@pytest.mark.parametrize("codes", [INT8, FP8])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotated_keys_are_written_as_codes(dtype: str, codes: str) -> None:
    case = rotary_case(3, 2, 20, 12, dtype, codes=codes)
    query, key = rotated(case.query, case), rotated(case.key, case)
    cache = case.batch.cache
    expected = type(cache)(cache.layout, cache.pool.clone())
    slots = case.batch.slot_blocks, case.batch.slot_offsets
    expected.write(case.layer, *slots, key, case.value)
    rotate_and_write(case.query, case.key, case.value, case.cos, case.sin, case.layer, case.batch)
    close(case.query, query)
    assert torch.equal(cache.pool, expected.pool)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3", "llama"])
def test_a_fused_model_gives_the_same_tokens(
    family: str, model_dir: ModelDir, tmp_path: Path
) -> None:
    path = model_dir(family)
    path = path if family == "qwen2_5_vl" else shallow(path, tmp_path / family)
    requests = [request_of(path, asking("Hello"), "0", max_tokens=3, ignore_eos=True)]
    expected = run(engine(path, parts=("language",), weight_layout="plain"), requests)
    worker = engine(path, parts=("language",), weight_layout="plain")
    assert worker.generate is not None
    model: Any = worker.generate._runs._runner._model  # type: ignore[attr-defined]
    layers = FusedLayers(model._text_model, fused_ops)
    assert len(layers) == model.text_config.num_hidden_layers
    assert run(worker, requests) == expected
    layers.release()


def shallow(model: Path, path: Path) -> Path:
    """The first layer of a model alone: the interpreter takes a second for a few tokens of each."""
    shutil.copytree(model, path)
    config = json.loads((path / "config.json").read_text())
    config["num_hidden_layers"] = 1
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:1]
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def one_layer(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow(model_dir("qwen3"), tmp_path_factory.mktemp("shallow") / "qwen3")


def test_a_recorded_step_of_kernels_gives_the_same_tokens(
    one_layer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: attention's kernels go by tensors, contexts of the recording are bounds."""
    requests = [
        request_of(one_layer, asking("Hello" * (1 + i)), f"{i}", max_tokens=2 + i, ignore_eos=True)
        for i in range(2)
    ]
    expected = run(engine(one_layer), requests)
    kernels: Any = TritonAttention(SplitPlan(programs=32, min_split=16, max_splits=4), True)
    capture = Rerun(kernels)
    use(monkeypatch, capture)
    worker = engine(
        one_layer, weight_layout="plain", max_num_seqs=2, max_model_len=64, num_blocks=16
    )
    assert worker.generate is not None
    model: Any = worker.generate._runs._runner._model  # type: ignore[attr-defined]
    layers = FusedLayers(model._text_model, fused_ops)
    assert len(layers)
    assert run(worker, requests) == expected
    assert len(capture.replayed) >= 2, "decode steps were to be replayed"
    layers.release()


def test_layers_are_fused_at_the_start_if_logits_stay(one_layer: Path) -> None:
    model = LanguageModel(one_layer, torch.float32, "cpu", fused=fused_ops)
    assert model.fused_layers == model.text_config.num_hidden_layers == 1


def test_layers_that_do_more_than_can_be_seen_keep_their_own_code(
    one_layer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Granite's, which scale what they add."""
    from transformers.models.qwen3 import modeling_qwen3

    own = modeling_qwen3.Qwen3MLP.forward
    monkeypatch.setattr(
        modeling_qwen3.Qwen3MLP, "forward", lambda self, x: own(self, x) * (3 + 0 * x.sum())
    )
    model = LanguageModel(one_layer, torch.float32, "cpu", fused=fused_ops)
    assert model.fused_layers == 0
    assert "fused kernels are not used" in caplog.text
    layers = [m for m in model.module.modules() if type(m).__name__ == "Qwen3DecoderLayer"]
    assert all("forward" not in vars(layer) for layer in layers)
    assert TOLERANCE[torch.float32] < 0.01


@pytest.mark.parametrize("shape", [(1, 4, 16), (3, 1, 4, 32), (1, 1, 32)])
def test_rotary_positions_of_another_form_are_left_to_the_layer(
    shape: tuple[int, ...], model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of each head, three dimensions, one token's for all: the kernel would read elsewhere."""
    model: Any = LanguageModel(model_dir("qwen3"), torch.float32, "cpu")
    layer = next(m for m in model.module.modules() if type(m).__name__ == "Qwen3DecoderLayer")
    assert layer.self_attn.head_dim == 32 or shape[-1] != 16
    monkeypatch.setattr(type(layer), "forward", lambda *_, **__: "own")
    layers = FusedLayers(model._text_model, fused_ops)
    hidden, cos = torch.zeros(1, 4, 64), torch.zeros(shape)
    paged: Any = object()
    assert layer(hidden, paged=paged, position_embeddings=(cos, cos)) == "own"
    layers.release()


def test_layers_of_another_form_are_left_alone(model_dir: ModelDir) -> None:
    model = LanguageModel(model_dir("gemma3"), torch.float32, "cpu", fused=fused_ops)
    assert model.fused_layers == 0
    assert isinstance(model.module, nn.Module)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_fused_vision_tower_gives_the_same_embeddings(family: str, model_dir: ModelDir) -> None:
    """Also where the columns of its gated layers are filled up."""
    vision = VisionModel(model_dir(family), torch.float32, "cpu", 1 << 20)
    sizes = ((28, 56), (28, 28))
    items = [EncodeItem(f"{i}", "image", 1, data=png(picture(i, *s))) for i, s in enumerate(sizes)]
    pixels = [vision.prepare(item).pixels for item in items]

    @torch.inference_mode()
    def embed() -> torch.Tensor:
        return torch.cat([one[EC_TENSOR] for one in vision._encode(vision._model, pixels)])

    expected = embed()
    assert fuse(vision.module, fused_ops, embed) > 3
    torch.testing.assert_close(embed(), expected, atol=2e-5, rtol=2e-5)


def test_a_vision_tower_that_computes_something_else_is_left_as_it_was(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 20)
    pixels = vision.prepare(EncodeItem("0", "image", 1, data=png(picture(0, 56, 56)))).pixels

    @torch.inference_mode()
    def embed() -> torch.Tensor:
        return vision._encode(vision._model, [pixels])[0][EC_TENSOR]

    expected = embed()
    monkeypatch.setattr(fused_ops, "silu_mul", lambda gate, up: gate * up)
    assert fuse(vision.module, fused_ops, embed) == 0
    assert torch.equal(embed(), expected)
