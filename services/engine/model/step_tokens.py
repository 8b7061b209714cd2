"""Where the tokens of a step stand, as arrays: what a step asks of Python does not grow with the
length of contexts, and hardly with the number of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.engine.attention.batch import PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import NamedAdapter, Request

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class StepTokens:
    """T tokens of R chunks, packed.

    starts: R + 1 offsets into the T tokens
    owner: int64[T], the chunk of each token
    index: int64[T], its place within its request
    """

    starts: list[int]
    owner: IntArray
    index: IntArray

    @staticmethod
    def of(chunks: Sequence[Chunk]) -> StepTokens:
        counts = np.array([chunk.width for chunk in chunks])
        firsts = np.array([chunk.start for chunk in chunks])
        starts = np.concatenate([[0], np.cumsum(counts)])
        owner = np.repeat(np.arange(len(chunks)), counts)
        index = np.arange(starts[-1]) + (firsts - starts[:-1])[owner]
        return StepTokens(starts.tolist(), owner, index)


def placed(
    tokens: StepTokens, tables: IntArray, block_size: int, contexts: Sequence[int]
) -> dict[str, NDArray[Any]]:
    """Where the tokens' KV goes, as arrays under the names that `batch_of` reads them by. tables:
    int64[R, B], the chunks' blocks; contexts: tokens of KV that each has after the step."""
    return {
        "positions": tokens.index,
        "slot_blocks": tables[tokens.owner, tokens.index // block_size],
        "slot_offsets": tokens.index % block_size,
        "tables": tables,
        "starts": np.array(tokens.starts, dtype=np.int32),
        "contexts": np.array(contexts, dtype=np.int32),
    }


def batch_of(
    cache: KVCache,
    step: Mapping[str, torch.Tensor],
    tokens: StepTokens,
    contexts: list[int],
    *,
    windowed_spans: bool = False,
) -> PagedBatch:
    """What attention needs to know of a step whose arrays lie on the device."""
    return PagedBatch(
        cache=cache,
        slot_blocks=step["slot_blocks"],
        slot_offsets=step["slot_offsets"],
        block_tables=step["tables"],
        query_starts=tokens.starts,
        context_lens=contexts,
        positions=step["positions"],
        span_starts=step.get("span_starts"),
        span_ends=step.get("span_ends"),
        windowed_spans=windowed_spans,
        starts=step["starts"],
        contexts=step["contexts"],
    )


def rotary_positions(chunks: Sequence[Chunk], tokens: StepTokens) -> IntArray:
    """int64[1 or 3, T] rotary positions of the chunks' tokens."""
    dimensions = len(chunks[0].request.positions)
    deltas = np.array([chunk.request.rope_delta for chunk in chunks])
    found = np.tile(tokens.index + deltas[tokens.owner], (dimensions, 1))
    for chunk, first in zip(chunks, tokens.starts, strict=False):
        known = min(chunk.end, chunk.request.num_prompt) - chunk.start
        if known > 0:  # those of a prompt are not told by their place where pictures are
            last = chunk.start + known
            found[:, first : first + known] = chunk.request.positions[:, chunk.start : last]
    return found


def rows_by_adapter(chunks: Sequence[Chunk], tokens: StepTokens) -> dict[NamedAdapter, IntArray]:
    """int64[N], the tokens that each LoRA adapter of the step changes."""
    chosen: dict[NamedAdapter, list[int]] = {}
    for number, chunk in enumerate(chunks):
        if (adapter := chunk.request.adapter) is not None:
            chosen.setdefault(adapter, []).append(number)
    return {
        adapter: np.flatnonzero(np.isin(tokens.owner, numbers))
        for adapter, numbers in chosen.items()
    }


class BlockTables:
    """The blocks of a step's requests as rows of an array that is kept from step to step: only what
    has changed is written. Relies on a request's list of blocks being appended to or replaced."""

    def __init__(self) -> None:
        self._array: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._lists: list[list[int]] = []  # whose blocks each row holds, kept for their identity
        self._filled: list[int] = []

    def of(self, requests: Sequence[Request]) -> IntArray:
        """int64[R, B], padded with 0."""
        width = max(len(request.blocks) for request in requests)
        if len(requests) > self._array.shape[0] or width > self._array.shape[1]:
            self._grow(len(requests), width)
        for row, request in enumerate(requests):
            blocks = request.blocks
            # By identity: a comparison of the numbers would grow with the context.
            same = self._lists[row] is blocks
            if not same or self._filled[row] != len(blocks):
                self._fill(row, blocks, self._filled[row] if same else 0)
        # A copy: on a CPU a step's tensors share its memory, and steps in a row keep it beyond one.
        return self._array[: len(requests), :width].copy()

    def _fill(self, row: int, blocks: list[int], first: int) -> None:
        self._array[row, first : len(blocks)] = blocks[first:]
        self._array[row, len(blocks) : self._filled[row]] = 0
        self._lists[row] = blocks
        self._filled[row] = len(blocks)

    def _grow(self, rows: int, width: int) -> None:
        """Twice what is needed, so that it is seldom. All rows are written again."""
        self._array = np.zeros((2 * rows, 2 * width), dtype=np.int64)
        self._lists = [[] for _ in range(2 * rows)]
        self._filled = [0] * (2 * rows)
