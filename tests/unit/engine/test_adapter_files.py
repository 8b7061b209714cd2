"""What is wrong with a LoRA adapter is said in one sentence, by its name."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from protocol.errors import InvalidRequest
from services.engine.messages import AdapterTable, LoadAdapter
from services.engine.model.adapter_config import CONFIG
from services.engine.model.adapter_files import WEIGHTS, Layer, Pair, read_adapter, read_files
from services.engine.model.adapters import Adapters
from services.engine.reports import adapters_after

LAYERS = {f"layers.{i}.self_attn.{name}": Layer(6, 4) for i in range(2) for name in ("q_proj", "o")}
PATH = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """One that changes a single layer."""
    (tmp_path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    tensors = {f"{PATH}.lora_A.weight": torch.ones(2, 6), f"{PATH}.lora_B.weight": torch.ones(4, 2)}
    save_file(tensors, tmp_path / WEIGHTS)
    return tmp_path


def read(folder: Path, max_rank: int = 8) -> dict[str, Pair]:
    return read_adapter(read_files("a", folder, LAYERS, max_rank), LAYERS, max_rank)


def configured(adapter: Path, **fields: Any) -> None:
    found = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps({**found, **fields}))


def rewritten(adapter: Path, change: Callable[[Tensors], Tensors]) -> None:
    tensors = change(load_file(adapter / WEIGHTS))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, adapter / WEIGHTS)


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "path", ["model.language_model.layers", "language_model.model.layers", "model.layers"]
)
def test_layers_are_found_wherever_their_model_has_them(path: str, adapter: Path) -> None:
    rewritten(adapter, renamed("model.language_model.layers", path))
    (name,) = pairs = read(adapter)
    assert name == "layers.0.self_attn.q_proj"
    assert torch.equal(pairs[name][1], 2 * torch.ones(4, 2)), "scaled by alpha / rank"


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({"lora_alpha": 3}, 1.5),
        ({"lora_alpha": 8, "use_rslora": True}, 8 / 2**0.5),
        ({"rank_pattern": {"q_proj": 4}}, 1.0),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 10}}, 5.0),
        ({"alpha_pattern": {"layers.1.*": 10, "j": 7}}, 2.0),
    ],
)
def test_scales(fields: dict[str, Any], scale: float, adapter: Path) -> None:
    configured(adapter, **fields)
    ((_, b),) = read(adapter).values()
    torch.testing.assert_close(b, scale * torch.ones(4, 2))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"use_dora": True}, "use_dora is set"),
        ({"bias": "all"}, "bias is set"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out is set"),
        ({"peft_type": "LOHA"}, "'LOHA' is not LORA"),
        ({"r": 0}, "adapter_config.json: Expected `int` >= 1"),
        ({"rank_pattern": {"(": 4}}, r"rank_pattern: '\(' is beyond the regular expressions"),
        ({"r": "many"}, "adapter_config.json: Expected `int`"),
    ],
)
def test_what_is_not_served_is_named(fields: dict[str, Any], why: str, adapter: Path) -> None:
    configured(adapter, **fields)
    with pytest.raises(InvalidRequest, match=f"LoRA adapter 'a': .*{why}"):
        read(adapter)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (renamed("language_model.layers", "visual.blocks"), "'model.visual.blocks.0.*vision"),
        (renamed("q_proj", "gate"), "'.*gate' belongs to no linear layer of this model"),
        (renamed("lora_A", "lora_embedding_A"), "is not a LoRA weight"),
        (renamed("lora_A.weight", "magnitude"), "is not a LoRA weight"),
        (lambda t: {k: v for k, v in t.items() if "lora_A" in k}, "only one of lora_A and lora_B"),
        (lambda t: {k: v[..., :1].contiguous() for k, v in t.items()}, "of another model"),
        (lambda t: {k: torch.ones(2) for k in t}, "of another model"),
        (lambda t: {k: torch.tensor(1.0) for k in t}, "of another model"),
        (lambda t: {}, "holds no weights"),
        (lambda t: {**t, **renamed(".weight", ".default.weight")(t)}, "with and without '.default"),
        (
            lambda t: {**t, **renamed("model.language_model", "language_model.model")(t)},
            r"a second adapter of 'layers\.0\.self_attn\.q_proj'",
        ),
        (renamed("model.layers", "model." * 4 + "layers"), "belongs to no linear layer"),
    ],
)
def test_weights_that_do_not_fit(
    change: Callable[[Tensors], Tensors], why: str, adapter: Path
) -> None:
    rewritten(adapter, change)
    with pytest.raises(InvalidRequest, match=f"LoRA adapter 'a': .*{why}"):
        read(adapter)


def test_a_rank_that_is_too_large(adapter: Path) -> None:
    with pytest.raises(InvalidRequest, match="its rank 2 is above --max-lora-rank 1"):
        read(adapter, 1)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_files_that_are_missing_or_broken(name: str, adapter: Path) -> None:
    (adapter / name).write_bytes(b"{")
    with pytest.raises(InvalidRequest, match=name):
        read(adapter)
    (adapter / name).unlink()
    with pytest.raises(InvalidRequest, match=f"cannot read .*{name}"):
        read(adapter)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_files_that_are_none(make: Callable[[Path], None], name: str, adapter: Path) -> None:
    (adapter / name).unlink()
    make(adapter / name)
    with pytest.raises(InvalidRequest, match=f"cannot read .*{name}"):
        read(adapter)


def test_a_file_larger_than_any_adapter_is_not_read(adapter: Path) -> None:
    os.truncate(adapter / WEIGHTS, 1 << 40)
    with pytest.raises(InvalidRequest, match="has 1099511627776 bytes, an adapter of this model"):
        read(adapter)


def loaded(folder: Path, name: str = "a") -> AdapterTable:
    """What an engine answers that is told to load it."""
    adapters = Adapters(LAYERS, 4, 8, torch.float32, "cpu")
    return adapters_after(adapters, LoadAdapter(1, name, str(folder)))


@pytest.mark.parametrize(("name", "why"), [("", ">= 1"), ("n" * 300, "<= 256")])
def test_a_name_that_no_master_takes_is_refused(name: str, why: str, adapter: Path) -> None:
    error = loaded(adapter, name).error
    assert error is not None
    assert (error.status, error.param) == (400, "lora_name")
    assert why in error.message


def test_no_folder_ends_the_engine(adapter: Path) -> None:
    assert loaded(adapter).error is None
    (adapter / "x.safetensors").mkdir()
    (adapter / "x_config.json").mkdir()
    assert loaded(adapter).error is None, "other files are none of the adapter"
    for folder in (Path("/" + "x" * 300), Path("a\0b"), adapter / "nothing", adapter / CONFIG):
        error = loaded(folder).error
        assert error is not None
        assert (error.status, error.param) == (400, "lora_path")


@pytest.mark.parametrize(("alpha", "dtype"), [(1e39, torch.float32), (1e6, torch.float16)])
def test_weights_that_are_not_finite(alpha: float, dtype: torch.dtype, adapter: Path) -> None:
    configured(adapter, lora_alpha=alpha)
    adapters = Adapters(LAYERS, 4, 8, dtype, "cpu")
    with pytest.raises(InvalidRequest, match=r"'layers\.0\.self_attn\.q_proj' are not all finite"):
        adapters.load("a", adapter)
    assert adapters.revisions == {}


def test_the_revision_is_of_the_bytes_wherever_they_lie(
    adapter: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copies = tmp_path_factory.mktemp("copies")

    def copied(to: str) -> Path:
        return Path(shutil.copytree(adapter, copies / to))

    def revision(folder: Path) -> str:
        return loaded(folder).adapters["a"]

    folders = [copied(to) for to in ("sql/snapshots/final", "chat/snapshots/final", "c")]
    first = revision(adapter)
    assert [revision(folder) for folder in folders] == [first] * 3
    rewritten(folders[0], lambda tensors: {name: t + 1 for name, t in tensors.items()})
    configured(folders[2], lora_alpha=3)
    found = [revision(folder) for folder in folders]
    assert found[1] == first
    assert len({*found}) == 3
    size = (folders[1] / WEIGHTS).stat().st_size
    rewritten(folders[1], lambda tensors: {name: t + 2 for name, t in tensors.items()})
    assert (folders[1] / WEIGHTS).stat().st_size == size
    assert revision(folders[1]) not in found, "trained anew in place"


def test_an_error_that_was_not_foreseen_is_the_answer() -> None:
    class Broken:
        @property
        def revisions(self) -> dict[str, str]:
            return {}

        def load(self, name: str, folder: Path) -> None:
            raise LookupError("surprise")

        def unload(self, name: str) -> None:
            raise LookupError("surprise")

    error = adapters_after(Broken(), LoadAdapter(1, "a", "/a")).error
    assert error is not None
    assert (error.status, error.message) == (500, "LookupError: surprise")
