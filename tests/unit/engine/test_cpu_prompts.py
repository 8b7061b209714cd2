"""The kernels for prompts on a CPU beside PyTorch's attention."""

import pytest
import torch

from services.engine.attention import cpu_decode, cpu_prompts, numba_runtime
from services.engine.attention.cpu_decode import CpuAttention
from services.engine.attention.cpu_prompts import PromptKernels, prompt_kernels
from services.engine.attention.kv_codes import INT8
from services.engine.attention.torch_attention import TorchAttention
from tests.support.paged_cases import LAYER, Case, check, make

pytestmark = pytest.mark.skipif(prompt_kernels() is None, reason="the processor lacks AVX512-BF16")


def case_of(
    name: str, queries: tuple[int, ...], contexts: tuple[int, ...],
    group: int = 2, kv_heads: int = 2, k_dim: int = 64, v_dim: int = 64, window: int = 0,
    block_size: int = 8,
) -> Case:  # fmt: skip
    return Case(
        name, queries, contexts, group, kv_heads, k_dim, v_dim, block_size, window, dtype="bfloat16"
    )


CASES = [
    case_of("all of a prompt", (100,), (100,)),
    case_of("two tokens", (2,), (2,)),
    case_of("one panel and one token", (65,), (65,)),
    case_of("after others", (70,), (333,)),
    case_of("a few behind many", (5,), (1000,), group=7, kv_heads=1),
    case_of("several, and single tokens", (30, 1, 64, 1), (50, 300, 64, 9), group=4),
    case_of("a window", (90,), (300,), window=70),
    case_of("a small window", (200,), (200,), window=3),
    case_of("a window wider than the context", (50,), (60,), window=100),
    case_of("other dimensions", (80,), (130,), k_dim=96, v_dim=128, block_size=16),
    case_of("small keys", (40,), (90,), k_dim=16, v_dim=64),
]
OTHERS = [
    case_of("values that are no panel", (40,), (90,), v_dim=80),
    Case("codes", (40,), (90,), k_dim=64, v_dim=64, dtype="bfloat16", codes=INT8),
    Case("float32", (40,), (90,), k_dim=64, v_dim=64),
    Case("softcap and sinks", (40,), (90,), k_dim=64, v_dim=64, softcap=20.0, sinks=True,
         dtype="bfloat16"),
    Case("media spans", (40,), (90,), k_dim=64, v_dim=64, spans=((0, 60, 80),), dtype="bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_equals_the_reference(case: Case) -> None:
    check(case, CpuAttention())


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests that the kernels have attended."""
    seen: list[int] = []
    call = PromptKernels.attend

    def attend(kernels: PromptKernels, *args: object) -> None:
        seen.append(args[3])  # type: ignore[arg-type]
        call(kernels, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PromptKernels, "attend", attend)
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_prompts_are_not_left_to_pytorch(case: Case, attended: list[int]) -> None:
    step = make(case)
    CpuAttention().attend(step.query, LAYER, step.batch, 0.3, None, None)
    assert attended == [r for r, count in enumerate(case.queries) if count > 1]


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_what_they_do_not_suit_is_left_to_pytorch(case: Case, attended: list[int]) -> None:
    check(case, CpuAttention())
    assert not attended


def test_scores_far_apart_do_not_overflow() -> None:
    """The largest that come late, so that all before them counts nothing."""
    step = make(case_of("large", (100,), (150,)))
    step.batch.cache.key(LAYER).mul_(torch.linspace(1, 3000, 8)[:, None, None])
    found, expected = (
        backend.attend(step.query, LAYER, step.batch, 1.0, None, None)
        for backend in (CpuAttention(), TorchAttention())
    )
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_room_of_a_longer_context_serves_shorter_ones() -> None:
    backend = CpuAttention()
    for case in (CASES[4], CASES[0], CASES[4]):
        check(case, backend)


@pytest.mark.parametrize("broken", ["team", "has_bfloat16_products"])
def test_without_kernels_pytorch_attends(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba_runtime, broken, lambda: None)
    monkeypatch.setattr(cpu_decode, "prompt_kernels", prompt_kernels.__wrapped__)
    step = make(CASES[0])
    found = CpuAttention().attend(step.query, LAYER, step.batch, 0.3, None, None)
    expected = TorchAttention().attend(step.query, LAYER, step.batch, 0.3, None, None)
    assert torch.equal(found, expected)


def test_room_for_a_very_long_context_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = prompt_kernels.__wrapped__()
    assert kernels is not None
    monkeypatch.setattr(cpu_decode, "prompt_kernels", lambda: kernels)
    monkeypatch.setattr(cpu_prompts, "_KEPT", 2 * 64 * 128)  # one panel of two heads
    check(CASES[0], CpuAttention())
    assert kernels._panels.numel() == 0
    check(CASES[1], CpuAttention())
    assert kernels._panels.numel() == 2 * 64 * 128
