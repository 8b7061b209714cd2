"""Paged attention cases, and the check of a backend's kernels against the PyTorch reference."""

from dataclasses import dataclass, replace

import msgspec
import torch

from protocol.refs import KVGroup, KVLayout
from services.engine.attention.batch import AttentionBackend, PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements
from services.engine.attention.kv_codes import encoded
from services.engine.attention.torch_attention import TorchAttention

LAYER = 1
_NO_NUMBER = 255  # each byte of a scale, or of a code of fp8, that is not a number
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class Case:
    """One step: request r brings queries[r] tokens, the last of contexts[r].

    spans: (request, first, past the end) of media seen in both directions
    windowed_spans: whether they count in layers with a window alone
    codes: what the cache holds, "" for elements of `dtype`
    """

    name: str
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    group: int = 2
    kv_heads: int = 2
    k_dim: int = 16
    v_dim: int = 16
    block_size: int = 8
    window: int = 0
    spans: tuple[tuple[int, int, int], ...] = ()
    windowed_spans: bool = False
    softcap: float | None = None
    sinks: bool = False
    dtype: str = "float32"
    codes: str = ""

    @property
    def heads(self) -> int:
        return self.group * self.kv_heads

    @property
    def layout(self) -> KVLayout:
        other = KVGroup((0,), 1, 8, 8)
        group = KVGroup((LAYER,), self.kv_heads, self.k_dim, self.v_dim, self.window)
        return KVLayout((other, group), self.block_size, self.codes or self.dtype)


@dataclass(frozen=True)
class Step:
    """query [heads, T, k_dim], key and value [kv_heads, T, dim], sinks [heads] or None."""

    batch: PagedBatch
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    sinks: torch.Tensor | None


def check(case: Case, backend: AttentionBackend, device: str = "cpu") -> None:
    """Write and attend with `backend`; outputs and the whole cache must be the reference's.

    The reference computes in float32 from the same values. Slots outside every context hold NaN
    in the backend's cache, so that any read there shows.
    """
    step = make(case, device)
    reference = _upcast(step)
    batch = step.batch
    dead = _unwritten(batch)
    nothing = _NO_NUMBER if case.codes else float("nan")
    batch.cache.pool[dead] = nothing
    expected = _run(case, reference, TorchAttention())
    actual = _run(case, step, backend)
    assert actual.dtype == step.query.dtype
    assert actual.shape == (len(batch.positions), case.heads, case.v_dim)
    tolerance = TOLERANCE[case.dtype]
    torch.testing.assert_close(actual.float(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        batch.cache.pool[dead],
        torch.full_like(batch.cache.pool[dead], nothing),
        equal_nan=True,
    )
    torch.testing.assert_close(
        batch.cache.pool[~dead].float(), reference.batch.cache.pool[~dead].float(), atol=0, rtol=0
    )


def make(case: Case, device: str = "cpu", seed: int = 0) -> Step:
    """Random tensors in the strides transformers gives; blocks of a request lie scattered."""
    random = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    widths = [-(-context // case.block_size) for context in case.contexts]
    order = torch.randperm(sum(widths) + 2, generator=random)
    tables = torch.zeros(len(widths), max(widths), dtype=torch.int64)
    used = 0
    for row, width in zip(tables, widths, strict=True):
        row[:width] = order[used : used + width]
        used += width
    plain = replace(case, codes="").layout
    pool = torch.randn(len(order), block_elements(plain), generator=random)
    tokens = sum(case.queries)
    shapes = ((case.heads, case.k_dim), (case.kv_heads, case.k_dim), (case.kv_heads, case.v_dim))
    query, key, value = (
        torch.randn(tokens, *shape, generator=random).to(device, dtype).transpose(0, 1)
        for shape in shapes
    )
    sinks = torch.randn(case.heads, generator=random).to(device, dtype) if case.sinks else None
    cache = KVCache(plain, pool.to(device, dtype))
    if case.codes:
        cache = of_codes(cache, case.codes)
    return Step(_batch(case, cache, tables, device), query, key, value, sinks)


def _batch(case: Case, cache: KVCache, tables: torch.Tensor, device: str) -> PagedBatch:
    pairs = list(zip(case.queries, case.contexts, strict=True))
    positions = torch.cat([torch.arange(context - count, context) for count, context in pairs])
    owner = torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor(case.queries))
    spans = torch.zeros(2, len(positions), dtype=torch.int64)
    for request, first, end in case.spans:
        inside = (owner == request) & (positions >= first) & (positions < end)
        spans[:, inside] = torch.tensor([[first], [end]])
    spans = spans.to(device)
    return PagedBatch(
        cache=cache,
        slot_blocks=tables[owner, positions // case.block_size].to(device),
        slot_offsets=(positions % case.block_size).to(device),
        block_tables=tables.to(device),
        query_starts=[sum(case.queries[:r]) for r in range(len(pairs) + 1)],
        context_lens=list(case.contexts),
        positions=positions.to(device),
        span_starts=spans[0] if case.spans else None,
        span_ends=spans[1] if case.spans else None,
        windowed_spans=case.windowed_spans,
    )


def _run(case: Case, step: Step, backend: AttentionBackend) -> torch.Tensor:
    backend.write(step.key, step.value, LAYER, step.batch)
    scale = case.k_dim**-0.5
    return backend.attend(step.query, LAYER, step.batch, scale, case.softcap, step.sinks)


def of_codes(cache: KVCache, codes: str) -> KVCache:
    """A cache of codes of what a cache holds."""
    layout = msgspec.structs.replace(cache.layout, dtype=codes)
    size = cache.num_blocks, block_elements(layout)
    made = KVCache(layout, torch.zeros(size, dtype=torch.uint8, device=cache.pool.device))
    for group in layout.groups:
        for layer in group.layers:
            made.key(layer)[:], made.key_scale(layer)[:] = encoded(cache.key(layer), made.kind)
            values = encoded(cache.value(layer), made.kind)
            made.value(layer)[:], made.value_scale(layer)[:] = values
    return made


def _upcast(step: Step) -> Step:
    cache = step.batch.cache
    pool = cache.pool.clone()
    wide = KVCache(cache.layout, pool)
    if not cache.kind:
        layout = msgspec.structs.replace(cache.layout, dtype="float32")
        wide = KVCache(layout, pool.float())
    return Step(
        replace(step.batch, cache=wide),
        step.query.float(),
        step.key.float(),
        step.value.float(),
        None if step.sinks is None else step.sinks.float(),
    )


def _unwritten(batch: PagedBatch) -> torch.Tensor:
    """bool like the pool: the slots of LAYER that no context reaches."""
    kind = batch.cache.kind
    pool = torch.zeros_like(batch.cache.pool, dtype=torch.uint8 if kind else torch.bool)
    dead = KVCache(batch.cache.layout, pool)
    marks = [(dead.key(LAYER), 1), (dead.value(LAYER), 1)]
    if kind:  # both bytes of a scale
        scales = dead.key_scale(LAYER), dead.value_scale(LAYER)
        marks += [(view.view(torch.int16), 0x0101) for view in scales]
    for view, mark in marks:
        view[:] = mark
    for table, context in zip(batch.block_tables, batch.context_lens, strict=True):
        index = torch.arange(context, device=table.device)
        places = table[index // batch.cache.block_size], index % batch.cache.block_size
        for view, _ in marks:
            view[places] = 0
    return pool != 0
