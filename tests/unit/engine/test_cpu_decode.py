"""The kernel for decoding on a CPU beside PyTorch's attention."""

from dataclasses import replace

import pytest
import torch

from services.engine.attention import cpu_decode_kernel, numba_runtime
from services.engine.attention.cpu_decode import CpuAttention
from services.engine.attention.kv_codes import FP8, INT8, decoded
from services.engine.attention.paged import backend_for
from services.engine.attention.torch_attention import TorchAttention
from tests.support.attention_calls import AttentionCalls
from tests.support.paged_cases import LAYER, Case, check, make
from tests.support.thinned import thinned

CPU = torch.device("cpu")
# Kernels are compiled for each shape of heads, which takes seconds, and kept by what `backend_for`
# gives.
PLAIN = [
    Case("one", (1,), (40,), dtype="bfloat16"),
    Case("contexts far apart", (1, 1, 1, 1), (9, 700, 33, 1), dtype="bfloat16"),
    Case("beside prompts", (1, 30, 1, 5), (50, 30, 700, 21), dtype="bfloat16"),
    Case("windows", (1, 1, 1), (70, 60, 9), window=16, dtype="bfloat16"),
    Case("one KV head, other value dimension", (1, 1), (17, 23), kv_heads=1, group=7, v_dim=8,
         dtype="bfloat16"),
]  # fmt: skip
CODED = [
    replace(case, name=f"{case.name}, {codes}", codes=codes)
    for case in PLAIN
    for codes in (INT8, FP8)
]
# Another shape of codes is another kernel: compiling one takes longer than all cases together.
CASES = thinned(
    [(case,) for case in (*PLAIN, *CODED)], lambda case: case.kv_heads > 1 or not case.codes
)
OTHERS = [
    Case("softcap and sinks", (1, 1), (30, 44), softcap=20.0, sinks=True, dtype="bfloat16"),
    Case("media spans", (20, 1), (40, 30), spans=((0, 22, 33), (1, 20, 30)), dtype="bfloat16"),
    Case("float32", (1, 1), (30, 44)),
    Case("float32 of codes", (1, 1), (30, 44), codes=INT8),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_equals_the_reference(case: Case) -> None:
    check(case, backend_for(CPU))


def attended(case: Case, backend: TorchAttention) -> torch.Tensor:
    step = make(case)
    backend.write(step.key, step.value, LAYER, step.batch)
    return backend.attend(step.query, LAYER, step.batch, 0.3, case.softcap, step.sinks)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_what_it_has_no_kernel_for_is_left_to_pytorch(case: Case) -> None:
    assert torch.equal(attended(case, CpuAttention()), attended(case, TorchAttention()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_single_tokens_are_not_left_to_pytorch(case: Case) -> None:
    step = make(case)
    with AttentionCalls() as calls:
        backend_for(CPU).attend(step.query, LAYER, step.batch, 0.3, None, None)
    assert calls.count == sum(count > 1 for count in case.queries)


def test_scores_far_apart_do_not_overflow() -> None:
    """The largest that come late, so that all before them counts nothing."""
    case = Case("large", (1, 1), (100, 33), dtype="bfloat16")
    step = make(case)
    step.batch.cache.key(LAYER).mul_(torch.linspace(1, 3000, case.block_size)[:, None, None])
    found, expected = (
        backend.attend(step.query, LAYER, step.batch, 1.0, None, None)
        for backend in (backend_for(CPU), TorchAttention())
    )
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_on_a_cpu_it_is_what_attends() -> None:
    assert isinstance(backend_for(CPU), CpuAttention)


@pytest.mark.parametrize("fails", [False, True], ids=["no OpenMP", "compiling fails"])
def test_without_a_kernel_pytorch_attends(*, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: int) -> None:
        raise RuntimeError("of Numba")

    if fails:
        monkeypatch.setattr(cpu_decode_kernel, "compile_kernel", failing)
    else:
        monkeypatch.setattr(numba_runtime, "team", lambda: None)
    for case in PLAIN[:2]:
        assert torch.equal(attended(case, CpuAttention()), attended(case, TorchAttention()))


@pytest.mark.parametrize("codes", [INT8, FP8])
def test_every_code_is_read_as_pytorch_reads_it(codes: str) -> None:
    """Values of all codes in contexts of one token, which are what comes out."""
    case = Case("all", (1,) * 8, (1,) * 8, dtype="bfloat16", codes=codes)
    step = make(case)
    cache = step.batch.cache
    every = torch.arange(256, dtype=torch.uint8)
    every[[0x7F, 0xFF]] = 0  # not numbers in fp8
    place = step.batch.slot_blocks, step.batch.slot_offsets
    every = every.view(8, case.kv_heads, case.v_dim)
    cache.value(LAYER)[place] = every
    cache.value_scale(LAYER)[place] = 2.0
    out = backend_for(CPU).attend(step.query, LAYER, step.batch, 0.3, None, None)
    expected = decoded(every, torch.tensor(2.0), cache.kind, torch.bfloat16)
    assert torch.equal(out, expected.repeat_interleave(case.group, dim=1))
