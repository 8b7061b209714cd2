"""What steps take is measured before the KV pool is sized, and the pool leaves it free."""

from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.errors import ConfigError
from services.engine import assembly, hardware, kv_memory
from services.engine import engine as engine_module
from services.engine.config import EngineConfig
from services.engine.hardware import memory_gauges, num_blocks_of
from services.engine.model import memory_profile
from services.engine.model.language import LanguageModel
from services.engine.model.loader import load_part
from services.engine.model.memory_profile import encode_peak, step_peak
from services.engine.model.packed_linear import _file_range, _maps
from services.engine.model.vision import VisionModel
from services.engine.sampling import draw
from services.worker.engine_metrics import ENGINE_GAUGES
from tests.conftest import ModelDir
from tests.support.engines import engine
from tests.support.replayed_steps import Rerun, use

GIB = 1 << 30


class Counted:
    """A `Memory` that says what it is told to."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def peak(self) -> int:
        assert self.begun
        return self.peaks.pop(0)


def config(**values: Any) -> EngineConfig:
    given = {"device": "cuda:1", "gpu_memory_utilization": 0.5, **values}
    return EngineConfig(model_dir="m", model="m", revision="r", parts=("language",), **given)


def test_the_pool_gets_what_weights_and_steps_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: (asked.append(device), (60 * GIB, 80 * GIB))[1]
    )
    assert num_blocks_of(config(), GIB) == 19  # 20, less what libraries may still load
    assert num_blocks_of(config(), GIB, 3 * GIB) == 16
    assert asked == ["cuda:1", "cuda:1"]
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        num_blocks_of(config(), GIB, 20 * GIB)
    assert num_blocks_of(config(num_blocks=99), GIB, 20 * GIB) == 99


def test_metrics_tell_of_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    found = memory_gauges("cuda:1")
    assert found == {"gpu_memory_used_bytes": 20 * GIB, "gpu_memory_total_bytes": 80 * GIB}
    assert found.keys() <= ENGINE_GAUGES.keys()
    assert memory_gauges("cpu") == {}


@pytest.mark.parametrize(
    ("tokens", "requests", "counts"), [(11, 3, [4, 4, 3]), (2, 8, [1, 1]), (5, 1, [5])]
)
def test_the_largest_step_is_measured(
    tokens: int,
    requests: int,
    counts: list[int],
    model_dir: ModelDir,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = LanguageModel(model_dir("qwen3"), torch.float32, "cpu")
    seen: list[tuple[list[int], int]] = []
    forward = model.forward

    def watched(inputs: Any, batch: Any) -> torch.Tensor:
        seen.append((batch.query_starts, len(inputs.rows)))
        return forward(inputs, batch)

    monkeypatch.setattr(model, "forward", watched)
    assert step_peak(model, Counted(7 * GIB), 4, tokens, requests) == 7 * GIB
    starts = [sum(counts[:row]) for row in range(len(counts) + 1)]
    assert seen == [(starts, len(counts))]


def test_draws_that_sort_all_of_a_row_are_measured(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As top-p does where tokens are about as likely as one another."""
    model = LanguageModel(model_dir("qwen3"), torch.float32, "cpu")
    sorted_rows: list[tuple[int, int]] = []
    likeliest = draw._likeliest

    def watched(scaled: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        sorted_rows.append((len(scaled), size))
        return likeliest(scaled, size)

    monkeypatch.setattr(draw, "_likeliest", watched)
    step_peak(model, Counted(1), 4, 11, 3)
    assert (3, model.text_config.vocab_size) in sorted_rows


def test_a_step_that_does_not_fit_names_the_flag(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = LanguageModel(model_dir("qwen3"), torch.float32, "cpu")
    monkeypatch.setattr(memory_profile, "run_step", full)
    with pytest.raises(ConfigError, match="--max-num-batched-tokens"):
        step_peak(model, Counted(), 4, 64, 2)


def test_a_picture_of_a_whole_run_is_measured(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    vision = VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 30)
    runs: list[list[int]] = []
    encode = vision.encode_at_once
    monkeypatch.setattr(
        vision,
        "encode_at_once",
        lambda batch: (runs.append([one.patches for one in batch]), encode(batch))[1],
    )
    assert encode_peak(vision, Counted(5), 256, 1 << 30) == 5
    assert encode_peak(vision, Counted(6), 256, 64 * 14 * 14) == 6
    assert runs == [[256], [64] * 4], "several, where none may be so large"


def test_pictures_that_do_not_fit_name_the_flag(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them would: what the allocator refuses is the whole run."""
    vision = VisionModel(model_dir("qwen2_5_vl"), torch.float32, "cpu", 1 << 30)
    encode = vision._encode

    def short_of_memory(model: Any, batch: list[Any]) -> Any:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encode(model, batch)

    monkeypatch.setattr(vision, "_encode", short_of_memory)
    with pytest.raises(ConfigError, match="--max-encoder-patches"):
        encode_peak(vision, Counted(6), 256, 64 * 14 * 14)


def test_both_parts_leave_each_other_room(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vision model is loaded and measured before the language model's pool is sized."""
    memory = Counted(100, 20)
    sized: list[int] = []

    def blocks(_: EngineConfig, __: int, activations: int) -> int:
        assert memory.begun == 2
        sized.append(activations)
        return 64

    monkeypatch.setattr(kv_memory, "memory_of", lambda _: memory)
    monkeypatch.setattr(kv_memory, "num_blocks_of", blocks)
    worker = engine(model_dir("qwen2_5_vl"), num_blocks=0, max_encoder_patches=64)
    assert sized == [120]
    assert set(worker.parameter_bytes) == {"vision", "language"}


def test_recordings_are_left_room(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Counted(20, 3)
    sized: list[int] = []
    monkeypatch.setattr(kv_memory, "memory_of", lambda _: memory)
    monkeypatch.setattr(kv_memory, "num_blocks_of", lambda *given: sized.append(given[2]) or 64)
    draws: list[int] = []
    monkeypatch.setattr(memory_profile, "draw", lambda rows, *_: draws.append(len(rows)))
    use(monkeypatch, Rerun())
    engine(model_dir("qwen3"), num_blocks=0)
    assert sized == [23]
    assert len(draws) == 1, "which are not recorded"


def test_the_engine_works_on_the_gpu_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its connectors are made: UCX takes the current one. With a fake of two GPUs."""
    current = [0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])

    def set_device(device: torch.device) -> None:
        assert device.index is not None, "PyTorch's own refuses a device without a number"
        current[0] = device.index

    monkeypatch.setattr(torch.cuda, "set_device", set_device)

    class MadeError(Exception):
        pass

    def connectors(*_: Any) -> None:
        raise MadeError(torch.cuda.current_device())

    monkeypatch.setattr(assembly, "Connectors", connectors)
    for device, index in (("cuda:1", 1), ("cuda", 1), ("cuda:0", 0)):
        with pytest.raises(MadeError, match=str(index)):
            engine_module.Engine(config(device=device), lambda: None)
    with pytest.raises(ConfigError, match="there is no cuda:2"):
        engine_module.Engine(config(device="cuda:2"), lambda: None)
    hardware.activate("cpu")
    assert current == [0]


def test_weights_stay_in_their_file_until_they_move_to_the_device(model_dir: ModelDir) -> None:
    """So nothing but the file's own pages is read on their way to a GPU."""
    path: Path = model_dir("qwen3")
    model: Any = load_part(path, "language", torch.float32, "cpu")
    ranges = [r for line in _maps() if (r := _file_range(line)) is not None]
    for name, weight in model.named_parameters():
        first, last = weight.data_ptr(), weight.data_ptr() + weight.nbytes
        assert any(begin <= first and last <= end for begin, end in ranges), name
