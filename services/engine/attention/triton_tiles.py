"""What the Triton attention kernels share: a tile of query rows against a range of paged keys.

The cache is read through a block table (PagedAttention, arXiv:2309.06180), one tile of keys after
another, with a running softmax (FlashAttention-2, arXiv:2307.08691). Scores are float32, base 2.
"""

# Triton gives its kernels' pointers and scalars no static types; only constants are annotated.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from services.engine.attention.triton_kv_codes import decode

LOG2E = tl.constexpr(1.4426950408889634)
MAX_TILE_KEYS = tl.constexpr(64)


@triton.jit
def load_tile(row_ptrs, live, DIM: tl.constexpr, PAD: tl.constexpr, MASKED: tl.constexpr):
    """[N, PAD] elements of N rows of DIM; zero in the padding and, if MASKED, in dead rows.

    Slots past a context hold what memory held before, and even 0 * NaN would reach the sums.
    """
    column = tl.arange(0, PAD)
    pointers = row_ptrs[:, None] + column[None, :]
    if MASKED and PAD != DIM:
        tile = tl.load(pointers, mask=live[:, None] & (column < DIM)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=live[:, None], other=0.0)
    elif PAD != DIM:
        tile = tl.load(pointers, mask=(column < DIM)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def load_scales(pointers, live, MASKED: tl.constexpr):
    """[N] scales of codes, zero in dead rows if MASKED."""
    return tl.load(pointers, mask=live, other=0.0) if MASKED else tl.load(pointers)


@triton.jit
def store_tile(row_ptrs, live, tile, DIM: tl.constexpr, PAD: tl.constexpr):
    """[N, PAD] elements to N rows of DIM, those that are live."""
    column = tl.arange(0, PAD)
    tl.store(
        row_ptrs[:, None] + column[None, :],
        tile.to(row_ptrs.dtype.element_ty),
        mask=live[:, None] & (column < DIM)[None, :],
    )


@triton.jit
def start_rows(sinks_ptr, head, live, counts, BLOCK_M: tl.constexpr):
    """(top, total) float32[M] of a running softmax before its first key: with sinks that of the
    row's head, if it `counts`."""
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks_ptr is not None:
        sink = tl.load(sinks_ptr + head, mask=live, other=0.0).to(tl.float32) * LOG2E
        top = tl.where(counts, sink, top)
        total = tl.where(counts, 1.0, total)
    return top, total


@triton.jit
def _scores(query, key, scale, SOFTCAP: tl.constexpr):
    """float32[M, N] in base 2; `scale` holds log2(e) unless there is a softcap."""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    if SOFTCAP is not None:
        # tanh(x) = 1 - 2 / (e^2x + 1), which is right at both infinities
        scores = 1.0 - 2.0 / (tl.exp2(scores * (2.0 * LOG2E / SOFTCAP)) + 1.0)
        scores *= SOFTCAP * LOG2E
    return scores


@triton.jit
def _fold_tile(
    top, total, acc, query, index, end, position, span_start, span_end,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr,
    stride_kb, stride_ks, stride_vb, stride_vs, stride_cb, stride_cs, scale,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    SPANS: tl.constexpr, KIND: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys at int32[N] `index` into the running softmax of M rows.

    top, total: float32[M], largest score and sum of weights; acc: float32[M, PAD_V]
    query: [M, PAD_K]; position, span_start, span_end: int32[M]
    key_scale_ptr, value_scale_ptr: of the codes of a KIND, [blocks, slots]; None where KIND is 0
    Without MASKED all rows must see all N keys.
    """
    live = index < end
    if MASKED:
        block = tl.load(table_ptr + index // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
    else:
        block = tl.load(table_ptr + index // BLOCK_SIZE).to(tl.int64)
    slot = index % BLOCK_SIZE
    key = load_tile(key_ptr + block * stride_kb + slot * stride_ks, live, K_DIM, PAD_K, MASKED)
    if KIND:
        scales = load_scales(key_scale_ptr + block * stride_cb + slot * stride_cs, live, MASKED)
        key = decode(key, scales[:, None], KIND)
    scores = _scores(query, key.to(query.dtype), scale, SOFTCAP)
    if MASKED:
        visible = index[None, :] <= position[:, None]
        if SPANS:
            in_span = (index[None, :] >= span_start[:, None]) & (index[None, :] < span_end[:, None])
            visible |= in_span
        if WINDOW:  # within a span, too, as transformers has it
            visible &= index[None, :] > position[:, None] - WINDOW
        scores = tl.where(visible & live[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet has top -inf, and -inf - -inf would be NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top) if MASKED else new_top
    weights = tl.exp2(scores - base[:, None])
    decay = tl.exp2(top - base)
    value = load_tile(value_ptr + block * stride_vb + slot * stride_vs, live, V_DIM, PAD_V, MASKED)
    if KIND:
        scales = load_scales(value_scale_ptr + block * stride_cb + slot * stride_cs, live, MASKED)
        value = decode(value, scales[:, None], KIND)
    value = value.to(query.dtype)
    acc = tl.dot(weights.to(value.dtype), value, acc * decay[:, None], input_precision="ieee")
    return new_top, total * decay + tl.sum(weights, 1), acc


@triton.jit
def fold_keys(
    top, total, acc, query, first, full, end, position, span_start, span_end,
    key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr, kv_head, scale,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
    K_DIM: tl.constexpr, V_DIM: tl.constexpr, PAD_K: tl.constexpr, PAD_V: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    SPANS: tl.constexpr, KIND: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Fold keys [first, end) of `kv_head`; rows see all of [first, full), a whole number of
    tiles."""
    key_ptr += kv_head * stride_kh
    value_ptr += kv_head * stride_vh
    if KIND:
        key_scale_ptr += kv_head
        value_scale_ptr += kv_head
    # Two loops: tiles that every row sees whole are computed without a mask.
    for start in range(first, full, BLOCK_N):
        top, total, acc = _fold_tile(
            top, total, acc, query, start + tl.arange(0, BLOCK_N), end,
            position, span_start, span_end,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr,
            stride_kb, stride_ks, stride_vb, stride_vs, stride_cb, stride_cs, scale,
            K_DIM, V_DIM, PAD_K, PAD_V, BLOCK_SIZE, WINDOW, SOFTCAP, SPANS, KIND,
            False,
        )  # fmt: skip
    for start in range(full, end, BLOCK_N):
        top, total, acc = _fold_tile(
            top, total, acc, query, start + tl.arange(0, BLOCK_N), end,
            position, span_start, span_end,
            key_ptr, value_ptr, key_scale_ptr, value_scale_ptr, table_ptr,
            stride_kb, stride_ks, stride_vb, stride_vs, stride_cb, stride_cs, scale,
            K_DIM, V_DIM, PAD_K, PAD_V, BLOCK_SIZE, WINDOW, SOFTCAP, SPANS, KIND,
            True,
        )  # fmt: skip
    return top, total, acc


@triton.jit
def request_of(tile, starts_ptr, num_requests, BLOCK_Q: tl.constexpr):
    """The request a query tile belongs to.

    Request r owns the tiles from starts[r] // BLOCK_Q + r on: one more than it needs at most, so
    that the host can bound the grid without knowing the lengths.
    """
    low = tl.full([], 0, tl.int32)
    high = num_requests - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(starts_ptr + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def visible_keys(
    first_position, context, position, packed, live, span_starts_ptr, span_ends_ptr,
    WINDOW: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """(first, full, end, span_start, span_end) of a query tile from `first_position` on.

    Its rows see keys of [first, end) only, and all of [first, full); span_* int32[M] are the media
    span each row stands in, which it sees as far as its window reaches back.
    """
    first = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW else 0
    end = tl.minimum(first_position + BLOCK_Q, context)
    span_start = position
    span_end = position
    if span_starts_ptr is not None:
        span_start = tl.load(span_starts_ptr + packed, mask=live, other=0).to(tl.int32)
        span_end = tl.load(span_ends_ptr + packed, mask=live, other=0).to(tl.int32)
        end = tl.minimum(tl.maximum(end, tl.max(span_end, 0)), context)
    if WINDOW or span_starts_ptr is not None:
        full = first
    else:
        full = (first_position + 1) // BLOCK_N * BLOCK_N
    return first, full, end, span_start, span_end


@triton.jit
def split_length(visible, split_keys, num_splits):
    """Keys of one split: `split_keys`, or whole tiles enough for `num_splits` to cover all."""
    share = tl.cdiv(visible, num_splits)
    return tl.where(share > split_keys, tl.cdiv(share, MAX_TILE_KEYS) * MAX_TILE_KEYS, split_keys)
