"""Triton kernels over the paged KV cache: prefill, decode with split KV, and the write.

The query heads that share a kv head lie in one tile, so every key is fetched once for all of them.
Decode cuts each context into splits that run beside each other and are merged by a second kernel
(Flash-Decoding, https://pytorch.org/blog/flash-decoding/). `triton_attention` launches them.
"""

# Triton gives its kernels' pointers and scalars no static types; only constants are annotated.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from services.engine.attention.triton_tiles import (
    fold_keys,
    load_tile,
    request_of,
    split_length,
    start_rows,
    store_tile,
    visible_keys,
)


# These change from step to step. Triton would compile a variant for 1 and one for multiples of
# 16, perhaps while requests wait.
@triton.jit(do_not_specialize=["num_requests", "table_width"])
def prefill_kernel(
    out_ptr, query_ptr, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr,
    tables_ptr, starts_ptr, contexts_ptr, span_starts_ptr, span_ends_ptr, sinks_ptr, scale,
    num_requests, table_width, stride_ot, stride_oh, stride_qt, stride_qh,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, KIND: tl.constexpr, SKIP_SINGLE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of packed queries. Grid (T // BLOCK_Q + R, kv_heads).

    out [T, heads, V_DIM], query [T, heads, K_DIM], key and value [blocks, BLOCK_SIZE, kv_heads, *],
    key_scale and value_scale [blocks, BLOCK_SIZE, kv_heads], of codes of a KIND, or None,
    tables int64[R, table_width], starts int32[R + 1], contexts int32[R], span_* int64[T] or None,
    sinks [heads] or None. Strides are in elements; the last dimension is contiguous.

    A program takes BLOCK_Q tokens of one request and the GROUP query heads of one kv head as rows
    token * GROUP + head; BLOCK_M >= BLOCK_Q * GROUP. With SKIP_SINGLE, requests with one token are
    left to the decode kernel.
    """
    # The last tiles of a prompt see the most keys: starting with them keeps the device full.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    request = request_of(tile, starts_ptr, num_requests, BLOCK_Q)
    begin = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - begin
    context = tl.load(contexts_ptr + request)
    first_token = (tile - begin // BLOCK_Q - request) * BLOCK_Q
    # The host bounds the grid without knowing lengths: some tiles have no tokens.
    if (first_token >= count) | (SKIP_SINGLE & (count == 1)):
        return

    row = tl.arange(0, BLOCK_M)
    token = first_token + row // GROUP
    live = (row < BLOCK_Q * GROUP) & (token < count)
    head = (kv_head * GROUP + row % GROUP).to(tl.int64)
    packed = (begin + token).to(tl.int64)
    position = context - count + token
    query_rows = query_ptr + packed * stride_qt + head * stride_qh
    query = load_tile(query_rows, live, K_DIM, PAD_K, True)

    first, full, end, span_start, span_end = visible_keys(
        context - count + first_token, context, position, packed, live,
        span_starts_ptr, span_ends_ptr, WINDOW, BLOCK_Q, BLOCK_N,
    )  # fmt: skip
    top, total = start_rows(sinks_ptr, head, live, True, BLOCK_M)
    top, total, acc = fold_keys(
        top, total, tl.zeros([BLOCK_M, PAD_V], tl.float32), query, first, full, end,
        position, span_start, span_end, key_ptr, value_ptr, key_scale_ptr, value_scale_ptr,
        tables_ptr + request.to(tl.int64) * table_width, kv_head, scale,
        stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
        K_DIM, V_DIM, PAD_K, PAD_V, BLOCK_SIZE, WINDOW, SOFTCAP,
        span_starts_ptr is not None, KIND, BLOCK_N,
    )  # fmt: skip

    out_rows = out_ptr + packed * stride_ot + head * stride_oh
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    store_tile(out_rows, live, out, V_DIM, PAD_V)


@triton.jit(do_not_specialize=["table_width", "split_keys", "num_splits"])
def decode_kernel(
    out_ptr, partial_ptr, top_ptr, total_ptr, query_ptr, key_ptr, value_ptr,
    key_scale_ptr, value_scale_ptr, tables_ptr, starts_ptr, contexts_ptr, sinks_ptr, scale,
    table_width, split_keys, num_splits, stride_ot, stride_oh, stride_qt, stride_qh,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
    GROUP: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, KIND: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of the requests that bring one token. Grid (R, kv_heads, num_splits).

    Arguments as in `prefill_kernel`, and with SPLIT the results of each split, to be merged:
    partial float32[R, heads, num_splits, V_DIM], top and total float32[R, heads, num_splits].
    Without SPLIT the grid's last dimension is 1 and out is written.
    """
    request = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    begin = tl.load(starts_ptr + request)
    if tl.load(starts_ptr + request + 1) - begin != 1:
        return
    context = tl.load(contexts_ptr + request)
    oldest = tl.maximum(context - WINDOW, 0) if WINDOW else 0
    length = split_length(context - oldest, split_keys, num_splits)
    first = oldest + split * length
    end = tl.minimum(first + length, context)
    if first >= end:
        return

    row = tl.arange(0, BLOCK_M)
    live = row < GROUP
    head = (kv_head * GROUP + row).to(tl.int64)
    packed = begin.to(tl.int64)
    query_rows = query_ptr + packed * stride_qt + head * stride_qh
    query = load_tile(query_rows, live, K_DIM, PAD_K, True)
    position = tl.full([BLOCK_M], 0, tl.int32) + context - 1

    # A sink counts once, at any number of splits.
    top, total = start_rows(sinks_ptr, head, live, split == 0, BLOCK_M)
    # The window is in `oldest`: within [first, end) everything is visible.
    top, total, acc = fold_keys(
        top, total, tl.zeros([BLOCK_M, PAD_V], tl.float32), query,
        first, first + (end - first) // BLOCK_N * BLOCK_N, end, position, position, position,
        key_ptr, value_ptr, key_scale_ptr, value_scale_ptr,
        tables_ptr + request.to(tl.int64) * table_width, kv_head, scale,
        stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh, stride_cb, stride_cs,
        K_DIM, V_DIM, PAD_K, PAD_V, BLOCK_SIZE, 0, SOFTCAP, False, KIND, BLOCK_N,
    )  # fmt: skip

    if SPLIT:
        num_heads = tl.num_programs(1) * GROUP
        place = (request.to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(top_ptr + place, top, mask=live)
        tl.store(total_ptr + place, total, mask=live)
        store_tile(partial_ptr + place * V_DIM, live, acc, V_DIM, PAD_V)
    else:
        out_rows = out_ptr + packed * stride_ot + head * stride_oh
        store_tile(out_rows, live, acc / total[:, None], V_DIM, PAD_V)


@triton.jit(do_not_specialize=["split_keys", "num_splits"])
def merge_kernel(
    out_ptr, partial_ptr, top_ptr, total_ptr, starts_ptr, contexts_ptr, split_keys, num_splits,
    stride_ot, stride_oh,
    V_DIM: tl.constexpr, PAD_V: tl.constexpr, WINDOW: tl.constexpr, PAD_SPLITS: tl.constexpr,
):  # fmt: skip
    """Merge the splits of `decode_kernel` into out. Grid (R, heads)."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(starts_ptr + request)
    if tl.load(starts_ptr + request + 1) - begin != 1:
        return
    visible = tl.load(contexts_ptr + request)
    if WINDOW:
        visible = tl.minimum(visible, WINDOW)
    length = split_length(visible, split_keys, num_splits)

    split = tl.arange(0, PAD_SPLITS)
    column = tl.arange(0, PAD_V)
    # A split that found no keys has written nothing: its place holds what was there before.
    live = split * length < visible
    place = (request.to(tl.int64) * tl.num_programs(1) + head) * num_splits + split
    top = tl.load(top_ptr + place, mask=live, other=float("-inf"))
    total = tl.load(total_ptr + place, mask=live, other=0.0)
    partial = tl.load(
        partial_ptr + place[:, None] * V_DIM + column[None, :],
        mask=live[:, None] & (column < V_DIM)[None, :],
        other=0.0,
    )
    weight = tl.exp2(top - tl.max(top, 0))
    out = tl.sum(partial * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(
        out_ptr + begin.to(tl.int64) * stride_ot + head * stride_oh + column,
        out.to(out_ptr.dtype.element_ty),
        mask=column < V_DIM,
    )


@triton.jit
def write_kernel(
    key_cache_ptr, value_cache_ptr, key_ptr, value_ptr, blocks_ptr, offsets_ptr,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    stride_nkt, stride_nkh, stride_nvt, stride_nvh,
    KV_HEADS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr,
):  # fmt: skip
    """Store the new key and value of token t at (blocks[t], offsets[t]). Grid (T,).

    key [T, KV_HEADS, K_DIM], value [T, KV_HEADS, V_DIM], blocks and offsets int64[T].
    PAD_K >= KV_HEADS * K_DIM, PAD_V >= KV_HEADS * V_DIM.
    """
    token = tl.program_id(0).to(tl.int64)
    block = tl.load(blocks_ptr + token).to(tl.int64)
    slot = tl.load(offsets_ptr + token).to(tl.int64)
    index = tl.arange(0, PAD_K)
    head, column, live = (index // K_DIM).to(tl.int64), index % K_DIM, index < KV_HEADS * K_DIM
    key = tl.load(key_ptr + token * stride_nkt + head * stride_nkh + column, mask=live)
    to = key_cache_ptr + block * stride_kb + slot * stride_ks + head * stride_kh + column
    tl.store(to, key, mask=live)
    index = tl.arange(0, PAD_V)
    head, column, live = (index // V_DIM).to(tl.int64), index % V_DIM, index < KV_HEADS * V_DIM
    value = tl.load(value_ptr + token * stride_nvt + head * stride_nvh + column, mask=live)
    to = value_cache_ptr + block * stride_vb + slot * stride_vs + head * stride_vh + column
    tl.store(to, value, mask=live)
