"""What attention takes over each KV cache of `--kv-cache-dtype`, on a CPU in bfloat16, in ms.

    python -m scripts.kv_cache_attention --threads 1

One layer of 16 heads over 4 KV heads of 128 elements; blocks lie scattered. Caches take turns, and
a figure is the median, so that what else the machine does hits them alike. The peer of a cache of
codes is the one of bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from protocol.refs import KVGroup, KVLayout
from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache, block_elements, pool_dtype
from services.engine.attention.kv_codes import FP8, INT8
from services.engine.attention.paged import backend_for

HEADS, KV_HEADS, DIM, BLOCK = 16, 4, 128, 16
CACHES = ("bfloat16", INT8, FP8)
STEPS = ((8, 1024, 1), (8, 4096, 1), (1, 512, 512), (1, 4096, 512))
"""Requests, tokens of the context of each, and of them those that the step computes."""


def cache_of(dtype: str, blocks: int) -> KVCache:
    """Filled with random keys and values."""
    layout = KVLayout((KVGroup((0,), KV_HEADS, DIM, DIM),), BLOCK, dtype)
    cache = KVCache(layout, torch.zeros(blocks, block_elements(layout), dtype=pool_dtype(layout)))
    generator = torch.Generator().manual_seed(0)
    tokens = torch.arange(blocks * BLOCK)
    key, value = (
        torch.randn(len(tokens), KV_HEADS, DIM, generator=generator).bfloat16() for _ in range(2)
    )
    cache.write(0, tokens // BLOCK, tokens % BLOCK, key, value)
    return cache


def batch_of(cache: KVCache, requests: int, context: int, count: int) -> PagedBatch:
    width = context // BLOCK
    generator = torch.Generator().manual_seed(1)
    tables = torch.randperm(cache.num_blocks, generator=generator)[: requests * width]
    positions = torch.arange(context - count, context).repeat(requests)
    tables = tables.view(requests, width)
    return PagedBatch(
        cache=cache,
        slot_blocks=tables.repeat_interleave(count, 0).gather(1, positions[:, None] // BLOCK)[:, 0],
        slot_offsets=positions % BLOCK,
        block_tables=tables,
        query_starts=list(range(0, requests * count + 1, count)),
        context_lens=[context] * requests,
        positions=positions,
    )


@torch.inference_mode()
def measured(requests: int, context: int, count: int, rounds: int) -> dict[str, float]:
    """Median time of attention in ms, by cache."""
    backend = backend_for(torch.device("cpu"))
    query = torch.randn(HEADS, requests * count, DIM).bfloat16()
    blocks = requests * context // BLOCK
    batches = {dtype: batch_of(cache_of(dtype, blocks), requests, context, count)
               for dtype in CACHES}  # fmt: skip
    times: dict[str, list[float]] = {dtype: [] for dtype in CACHES}
    for _ in range(rounds + 2):  # two to compile and to warm up
        for dtype, batch in batches.items():
            begun = time.perf_counter()
            backend.attend(query, 0, batch, DIM**-0.5, None, None)
            times[dtype].append((time.perf_counter() - begun) * 1e3)
    return {dtype: statistics.median(found[2:]) for dtype, found in times.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=15, help="calls with each cache")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    print(f"| step | {' | '.join(CACHES)} |\n|---|{'---:|' * len(CACHES)}")
    for requests, context, count in STEPS:
        found = measured(requests, context, count, args.rounds)
        what = f"{requests} × 1" if count == 1 else f"{count}"
        row = " | ".join(f"{ms:.1f}" for ms in found.values())
        print(f"| {what} tokens, contexts of {context} | {row} |", flush=True)


if __name__ == "__main__":
    main()
