"""Every variant of a kernel that requests ask for has been compiled before the engine is ready."""

from typing import Any

import pytest
import torch

from services.engine import loaded_model
from services.engine.attention import paged
from services.engine.attention.cpu_decode import CpuAttention
from services.engine.attention.triton_backend import TritonAttention
from services.engine.attention.triton_plan import SplitPlan
from services.engine.model import fused_layers
from services.engine.model import runner as runner_module
from services.engine.model import warm_up as warm_up_module
from services.engine.model.runner import Runner
from services.engine.model.step_upload import Arrays, pack, packed_bytes, views
from services.engine.model.warm_up import warm_steps, warm_up
from tests.conftest import ModelDir
from tests.support.conversations import LONG, asking, picture, text_cases
from tests.support.engines import engine, request_of, run
from tests.support.replayed_steps import Rerun, use

PLAN = SplitPlan(programs=1000)
Variant = tuple[Any, ...]


def of(value: Any, specialized: bool) -> Any:
    """What Triton's compiler is told of an argument."""
    if torch.is_tensor(value):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int) and specialized:
        return value == 1, value % 16 == 0
    return value if value is None else type(value)


class Launches(TritonAttention):
    """Notes which variants of kernels are asked for, and computes nothing."""

    seen: set[Variant]

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        if "out_ptr" in arguments:
            arguments["out_ptr"].zero_()
        told = (
            (p.name, arguments[p.name])
            if p.is_constexpr
            else (p.name, of(arguments[p.name], not p.do_not_specialize))
            for p in kernel.params
        )
        self.seen.add((kernel.fn.__name__, *told))


def launches() -> Launches:
    found = Launches(PLAN)
    object.__setattr__(found, "seen", set())
    return found


def packed(arrays: Arrays, _: torch.device) -> dict[str, torch.Tensor]:
    """As on a GPU, where all arrays lie in one buffer."""
    host = torch.empty(packed_bytes(arrays), dtype=torch.uint8)
    pack(arrays, host)
    return views(arrays, host)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "qwen3"])
def test_requests_compile_nothing(
    family: str, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model_dir(family)
    use(monkeypatch, Rerun())
    worker = engine(path, num_blocks=600, block_size=16, max_model_len=8000)
    assert worker.generate is not None
    runner = worker.generate._runs._runner
    assert isinstance(runner, Runner)
    runner._graphs = None
    backend = launches()
    monkeypatch.setattr(paged, "backend_for", lambda _: backend)
    for module in (runner_module, warm_up_module):
        monkeypatch.setattr(module, "upload", packed)
    warm_up(runner._model, runner._cache, 600, 8000)
    compiled = set(backend.seen)
    cases = text_cases() if worker.encode is None else [asking(picture(1), "What?"), asking(LONG)]
    cases += [asking(LONG * times) for times in (8, 50)]
    requests = [
        request_of(path, case, f"r{i}", max_tokens=4 + 3 * i, ignore_eos=True)
        for i, case in enumerate(cases)
    ]
    backend.seen.clear()
    run(worker, requests)
    assert {variant[0] for variant in backend.seen} >= {"decode_kernel", "prefill_kernel"}
    assert backend.seen - compiled == set()


def test_short_pools_are_warmed_within_their_bounds() -> None:
    for longest in (1, 2, 16, 300, 5000):
        steps = list(warm_steps(longest, spans=True))
        assert max(max(step.contexts) for step in steps) <= longest
        assert all(c <= k for s in steps for c, k in zip(s.counts, s.contexts, strict=True))
    splits = [PLAN.eager(s.contexts, 4).count for s in warm_steps(32768, spans=False)]
    assert any(count == 1 for count in splits)
    for least, most in ((2, 16), (17, 32), (33, 64)):
        assert any(least <= count <= most for count in splits)


def test_a_model_that_cannot_be_recorded_decodes_eagerly(
    model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = model_dir("qwen3")
    expected = run(engine(path), [request_of(path, asking("Hello"), "r")])

    class Refuses(Rerun):
        def __call__(self, run: Any) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

    use(monkeypatch, Refuses())
    worker = engine(path)
    assert "not permitted when stream is capturing" in caplog.text
    assert run(worker, [request_of(path, asking("Hello"), "r")]) == expected


def test_a_cpu_warms_nothing_up(model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(loaded_model, "warm_up", lambda *given: asked.append(given))
    engine(model_dir("qwen3"))
    assert asked == []


@pytest.mark.parametrize("block_size", [pytest.param(16, marks=pytest.mark.slow), 32])
def test_single_tokens_compile_nothing_on_a_cpu(
    block_size: int, model_dir: ModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel is compiled for the size of blocks."""
    backend = CpuAttention()
    for module in (paged, fused_layers):
        monkeypatch.setattr(module, "backend_for", lambda _: backend)
    path = model_dir("qwen3")
    worker = engine(path, dtype="bfloat16", num_blocks=64, block_size=block_size)
    compiled = set(backend._kernels)
    assert block_size in {shape.block for shape in compiled}
    run(worker, [request_of(path, asking("Hello"), "r", max_tokens=4, ignore_eos=True)])
    assert set(backend._kernels) == compiled
    worker.close()
