"""Bytes of the index for each block, beside a dictionary of sets fed by the same events."""

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchmarks.bench_master.load import CHAIN, SEED
from benchmarks.common.rows import Row, at_most
from services.master.index.prefix_index import block_index

WORKERS = 10_000
UNDER_WAY = 2_000
_PIECE = 16  # blocks of one event: a chunk of a prompt

Event = tuple[int, Sequence[int]]


def events(blocks: int, holders: int) -> Iterator[Event]:
    """(worker, keys): `UNDER_WAY` prompts at a time arrive in pieces, each on `holders` workers of
    its own. Keys are decoded for each event anew, as they are by the master."""
    rng = random.Random(SEED)
    live: list[tuple[list[int], int]] = []
    while blocks > 0:
        while len(live) < UNDER_WAY:
            live.append((rng.sample(range(WORKERS), holders), CHAIN))
        i = rng.randrange(len(live))
        at, left = live[i]
        keys = [rng.getrandbits(64) for _ in range(min(_PIECE, left, blocks))]
        for worker in at:
            yield worker, msgspec.msgpack.decode(msgspec.msgpack.encode(keys))
        blocks -= len(keys)
        if left > _PIECE:
            live[i] = at, left - _PIECE
        else:
            live[i] = live[-1]
            live.pop()


def memory_rows(blocks: int) -> list[Row]:
    """The bar is in bytes for the normal case, where prefill and decode hold the same blocks. A
    dictionary doubles at once, so a figure depends on `blocks`: the largest is just after that."""

    def ours(holders: int) -> Callable[[], object]:
        def fill() -> object:
            index = block_index(blocks)
            for worker, keys in events(blocks, holders):
                index.add(worker, keys)
            return index

        return fill

    def plain(holders: int) -> Callable[[], object]:
        def fill() -> object:
            index: dict[int, set[int]] = {}
            for worker, keys in events(blocks, holders):
                for key in keys:
                    index.setdefault(key, set()).add(worker)
            return index

        return fill

    name = f"index bytes/block, {WORKERS:,} workers, {{}} (peer: dict of sets)"
    two, one = traced(ours(2)) / blocks, traced(ours(1)) / blocks
    return [
        at_most("index bytes/block, two holders each (peer: the most allowed)", two, 120.0, 1),
        at_most(name.format("two holders each"), two, traced(plain(2)) / blocks, 1),
        at_most(name.format("one holder each"), one, traced(plain(1)) / blocks, 1),
    ]


def traced(fill: Callable[[], object]) -> float:
    """Bytes that what `fill` returns keeps alive."""
    gc.collect()
    tracemalloc.start()
    kept = fill()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return float(size)
