"""The PyTorch attention beside sums written out, and how it groups the requests of a step."""

import pytest
import torch

from services.engine.attention.decode_groups import decode_groups
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.torch_attention import TorchAttention
from tests.support.attention_calls import AttentionCalls
from tests.support.paged_cases import LAYER, Case, Step, check, make

CASES = [
    Case("decode, equal contexts", (1, 1, 1), (40, 40, 40)),
    Case("decode, contexts far apart", (1, 1, 1, 1), (9, 700, 33, 1)),
    Case("decode beside prompts", (1, 30, 1, 5), (50, 30, 700, 21), group=4),
    Case("windows", (1, 20, 1), (70, 60, 9), window=16),
    Case("media spans", (20, 1), (40, 30), spans=((0, 22, 33), (1, 20, 30))),
    Case("a window within a span", (20, 1), (40, 30), window=8, spans=((0, 22, 33),)),
    Case("spans of other layers", (20,), (40,), spans=((0, 22, 33),), windowed_spans=True),
    Case("spans of windows", (20,), (40,), window=8, spans=((0, 22, 33),), windowed_spans=True),
    Case("softcap and sinks", (1, 7, 1), (30, 20, 44), softcap=20.0, sinks=True),
    Case("one KV head, other value dimension", (1, 1), (17, 23), kv_heads=1, group=7, v_dim=8),
    Case("int8", (1, 30, 1, 5), (50, 30, 700, 21), group=4, codes=INT8),
    Case("fp8, windows", (1, 20, 1), (70, 60, 9), window=16, v_dim=8, codes=FP8),
]


def naive(case: Case, step: Step) -> torch.Tensor:
    """Each token and head by itself, in float64."""
    batch = step.batch
    outputs = []
    for r, context in enumerate(case.contexts):
        index = torch.arange(context)
        places = batch.block_tables[r, index // case.block_size], index % case.block_size
        every = torch.arange(batch.cache.num_blocks)
        keys, values = (
            rows[places].double() for rows in batch.cache.read(LAYER, every, torch.float32)
        )
        for t in range(batch.query_starts[r], batch.query_starts[r + 1]):
            position = int(batch.positions[t])
            seen = index <= position
            counts = bool(case.spans) and (case.window > 0 or not case.windowed_spans)
            if counts and batch.span_starts is not None and batch.span_ends is not None:
                seen |= (index >= batch.span_starts[t]) & (index < batch.span_ends[t])
            if case.window:
                seen &= index > position - case.window
            for head in range(case.heads):
                kv = head // case.group
                scores = keys[:, kv] @ step.query[head, t].double() * 0.3
                if case.softcap is not None:
                    scores = torch.tanh(scores / case.softcap) * case.softcap
                weights = scores.masked_fill(~seen, float("-inf")).exp()
                sink = 0.0 if step.sinks is None else step.sinks[head].double().exp()
                outputs.append(weights / (weights.sum() + sink) @ values[:, kv])
    return torch.stack(outputs).view(-1, case.heads, case.v_dim)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_equals_sums_written_out(case: Case) -> None:
    step = make(case)
    backend = TorchAttention()
    backend.write(step.key, step.value, LAYER, step.batch)
    out = backend.attend(step.query, LAYER, step.batch, 0.3, case.softcap, step.sinks)
    torch.testing.assert_close(out.double(), naive(case, step), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_lies_behind_a_context_reaches_no_output(case: Case) -> None:
    """Requests of one group are padded to the longest: not even NaN gets from there to others."""
    check(case, TorchAttention())


PROMPTS = [
    Case("whole prompts", (100, 33), (100, 33), group=4, dtype="bfloat16"),
    Case("a scale that is no power of two", (70,), (300,), k_dim=24, v_dim=8, dtype="bfloat16"),
    Case("continued, beside decoding", (1, 32, 31), (50, 700, 31), dtype="bfloat16"),
    Case("a window that cuts", (40,), (300,), window=64, dtype="bfloat16"),
    Case("a window that does not", (40,), (60,), window=64, dtype="bfloat16"),
    Case("whole, float32", (100, 33), (100, 33), group=4),
    Case("whole, int8", (100, 33), (100, 33), group=4, dtype="bfloat16", codes=INT8),
    Case("continued, fp8", (1, 32, 31), (50, 700, 31), dtype="bfloat16", codes=FP8),
]


@pytest.mark.parametrize("case", PROMPTS, ids=lambda case: case.name)
def test_prompts_equal_the_reference(case: Case) -> None:
    check(case, TorchAttention())


@pytest.mark.parametrize("precision", ["ieee", "none"])
def test_prompts_in_bfloat16_are_left_to_matrix_products(precision: str) -> None:
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    case = Case("prompts", (100, 32), (100, 700), dtype="bfloat16")
    step = make(case)
    try:
        with AttentionCalls() as calls:
            TorchAttention().attend(step.query, LAYER, step.batch, 0.3, None, None)
        assert calls.count == 0
        assert matmul.fp32_precision == precision
    finally:
        matmul.fp32_precision = before


def grouped(*contexts: int, key_bytes: int = 0) -> list[list[int]]:
    """Rows of the groups that contexts of these lengths make."""
    tables = torch.zeros(len(contexts), 1 + max(contexts) // 8, dtype=torch.int64)
    positions = torch.tensor(contexts) - 1
    groups = decode_groups(range(len(contexts)), contexts, tables, positions, 8, key_bytes)
    return [sorted(group.rows.tolist()) for group in groups]


def test_contexts_alike_are_one_group_and_a_long_one_is_not_padded_to() -> None:
    assert grouped(500, 510, 505) == [[0, 1, 2]]
    assert grouped(100, 5000, 110, 4900) == [[0, 2], [1, 3]]
    assert grouped(10, 60, 30, 90) == [[0, 1, 2, 3]]  # too short to be worth another call


def test_no_group_reads_much_more_than_its_contexts() -> None:
    contexts = [1 + 37 * i for i in range(100)]
    groups = grouped(*contexts)
    assert sorted(row for rows in groups for row in rows) == list(range(100))
    for rows in groups:
        lengths = [contexts[row] for row in rows]
        assert max(lengths) * len(lengths) - sum(lengths) <= max(256, 0.25 * sum(lengths) / 0.75)
    assert len(groups) < 20


def test_the_keys_of_a_group_of_several_fit_a_cache() -> None:
    """3 MiB, of 1 KiB a token: 3,072 tokens; a longer context is a group of its own."""
    assert grouped(*[1000] * 8, key_bytes=1024) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert grouped(5000, 5000, 4, key_bytes=1024) == [[2], [0], [1]]
