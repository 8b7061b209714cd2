"""Decode steps recorded once and replayed: what the host asks of a device is one call a step.

A recording is made for each of a few batch sizes (buckets) and computes over static buffers; a step
is padded to the next bucket. Padding rows write to and read from a reserved block of the KV pool,
which belongs to no request. What records is a `Capture`: CUDA graphs, or in tests
one that just calls again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from services.engine.attention.batch import AttentionBackend, PagedBatch
from services.engine.attention.kv_cache import KVCache
from services.engine.attention.paged import runs_triton
from services.engine.model.language import Inputs, LanguageModel
from services.engine.model.step_upload import upload

logger = logging.getLogger(__name__)
_MOST = 512  # rows: steps of more compute for so long that launches hide behind them
_WARM_RUNS = 2  # compile kernels and let libraries choose algorithms, none of which is captured
_COLUMNS = ("ids", "positions", "slot_blocks", "slot_offsets")  # int64, one value a row

Arrays = Mapping[str, NDArray[Any]]
Replay = Callable[[], None]


class Capture(Protocol):
    """Records what a function asks of a device."""

    @property
    def backend(self) -> AttentionBackend:
        """Attention that goes by a batch's tensors; its lists are bounds."""

    def __call__(self, run: Callable[[], None]) -> Replay:
        """Call `run`, perhaps several times; the result does what it did, without Python."""


def bucket_sizes(most: int) -> list[int]:
    """Rows that steps of up to `most` rows are padded to, ascending. Few enough to be captured in
    seconds, close enough to waste little: an eighth from 64 rows on."""
    most = min(most, _MOST)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, _MOST, 32)]
    return [*(size for size in sizes if size < most), most]


class DecodeGraphs:
    """The recordings of one model over one cache; `reserved` is a block that no request has.

    `most` rows and contexts of `longest` tokens fit. All recordings share their inputs' and their
    outputs' memory: logits hold until the next step.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        capture: Capture,
        reserved: int,
        most: int,
        longest: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._reserved = reserved
        self._longest = longest
        self._device = torch.device(model.device)
        self._sizes = bucket_sizes(most)
        rows, width = self._sizes[-1], -(-longest // cache.block_size)
        dimensions = 3 if model.uses_mrope else 1

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        self._columns = zeros(len(_COLUMNS) + dimensions, rows)
        self._tables = zeros(rows, width)
        self._contexts = zeros(rows, dtype=torch.int32)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=self._device)
        self._rows = torch.arange(rows, device=self._device)
        self._logits = zeros(rows, model.text_config.vocab_size, dtype=torch.float32)
        self._replays = self._captured(capture)

    @property
    def block_size(self) -> int:
        """Tokens of a block of the cache."""
        return self._cache.block_size

    @torch.inference_mode()
    def _captured(self, capture: Capture) -> dict[int, Replay]:
        """The largest first: those that follow find room in its memory."""
        replays = {}
        for size in reversed(self._sizes):
            self._fill(_nothing(len(self._columns) - len(_COLUMNS)), size)
            replays[size] = capture(self._step(size, capture.backend))
        return replays

    def _step(self, size: int, backend: AttentionBackend) -> Callable[[], None]:
        """What computes `size` rows of the buffers."""
        ids, positions, slot_blocks, slot_offsets = self._columns[: len(_COLUMNS), :size]
        batch = PagedBatch(
            cache=self._cache,
            slot_blocks=slot_blocks,
            slot_offsets=slot_offsets,
            block_tables=self._tables[:size],
            query_starts=list(range(size + 1)),
            context_lens=[self._longest] * size,
            positions=positions,
            backend=backend,
            starts=self._starts[: size + 1],
            contexts=self._contexts[:size],
        )
        rotary, rows = self._columns[len(_COLUMNS) :, :size], self._rows[:size]

        def step() -> None:
            inputs = Inputs(self._model.embed(ids), rotary, rows)
            self._logits[:size].copy_(self._model.forward(inputs, batch))

        return step

    @classmethod
    def recorded(
        cls,
        model: LanguageModel,
        cache: KVCache,
        capture: Capture,
        reserved: int,
        most: int,
        longest: int,
    ) -> DecodeGraphs | None:
        """As the constructor makes them; None, with a warning, where a model cannot be recorded
        because its code looks at values on the device."""
        begun = time.monotonic()
        try:
            graphs = cls(model, cache, capture, reserved, most, longest)
        except RuntimeError as error:
            logger.warning("decode steps run eagerly, for they cannot be captured: %s", error)
            return None
        logger.info("captured steps of %s rows in %.1f s", graphs._sizes, time.monotonic() - begun)
        return graphs

    def forward(self, arrays: Arrays) -> torch.Tensor | None:
        """Logits float32[R, vocabulary] of a step of R rows, None if it is none that was recorded.

        arrays: as `Runner` makes them; KV must lie in blocks of the cache.
        """
        count = len(arrays["contexts"])
        size = next((size for size in self._sizes if size >= count), None)
        if size is None or not self._fits(arrays, count):
            return None
        self._fill(arrays, size)
        self._replays[size]()
        return self._logits[:count]

    def _fits(self, arrays: Arrays, count: int) -> bool:
        """Whether each row is one token that is no picture's and no adapter's, and its logits are
        asked for."""
        return (
            len(arrays["ids"]) == count
            and "places" not in arrays
            and "span_starts" not in arrays
            and "adapter_rows" not in arrays
            and np.array_equal(arrays["rows"], np.arange(count))
            and arrays["tables"].shape[1] <= self._tables.shape[1]
        )

    def _fill(self, arrays: Arrays, size: int) -> None:
        """Write a step, padded to `size` rows, into the buffers."""
        sent = upload(padded(arrays, size, self._reserved), self._device)
        self._columns[:, :size].copy_(sent["columns"])
        # Columns beyond keep blocks of earlier steps: no context reaches them.
        self._tables[:size, : sent["tables"].shape[1]].copy_(sent["tables"])
        self._contexts[:size].copy_(sent["contexts"])


def padded(arrays: Arrays, size: int, reserved: int) -> dict[str, NDArray[Any]]:
    """A step of R rows as `size`: the others are the first token of a request in block `reserved`.

    columns: int64[4 + dimensions, size], see `_COLUMNS`, and the rotary positions
    tables: int64[size, B]; contexts: int32[size]
    """
    count, width = arrays["tables"].shape
    rotary = arrays["rotary"]
    columns = np.zeros((len(_COLUMNS) + len(rotary), size), dtype=np.int64)
    for row, name in enumerate(_COLUMNS):
        columns[row, :count] = arrays[name]
    columns[len(_COLUMNS) :, :count] = rotary
    columns[_COLUMNS.index("slot_blocks"), count:] = reserved
    tables = np.full((size, width), reserved, dtype=np.int64)
    tables[:count] = arrays["tables"]
    contexts = np.ones(size, dtype=np.int32)
    contexts[:count] = arrays["contexts"]
    return {"columns": columns, "tables": tables, "contexts": contexts}


def _nothing(dimensions: int) -> Arrays:
    """A step of no row; `padded` makes it one of padding alone."""
    empty = np.zeros(0, dtype=np.int64)
    return {
        **dict.fromkeys(_COLUMNS, empty),
        "rotary": np.zeros((dimensions, 0), dtype=np.int64),
        "tables": np.zeros((0, 1), dtype=np.int64),
        "contexts": np.zeros(0, dtype=np.int32),
    }


class CudaCapture:
    """A `Capture`; its graphs share one pool of memory, for they run one at a time."""

    def __init__(self, device: torch.device, backend: AttentionBackend) -> None:
        self._device = device
        self._backend = backend
        self._pool = torch.cuda.graph_pool_handle()

    @property
    def backend(self) -> AttentionBackend:
        return self._backend

    def __call__(self, run: Callable[[], None]) -> Replay:
        before, stream = torch.cuda.current_stream(self._device), torch.cuda.Stream(self._device)
        stream.wait_stream(before)
        graph = torch.cuda.CUDAGraph()
        # A capture that fails leaves its stream the current one: this goes back to the one before.
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):
                run()
            # Threads of the connectors may use the device meanwhile: only this one is watched.
            with torch.cuda.graph(graph, self._pool, stream, capture_error_mode="thread_local"):
                run()
        before.wait_stream(stream)
        return graph.replay


def capture_on(device: str, *, enforce_eager: bool) -> Capture | None:
    """What records decode steps on `device`; None where they run eagerly: on a CPU, without
    Triton's kernels, whose work follows tensors, and by `--enforce-eager`."""
    if enforce_eager or not runs_triton(device):
        return None
    found = torch.device(device)
    from services.engine.attention.triton_backend import TritonAttention

    backend = replace(TritonAttention.for_device(found), captured=True)
    return CudaCapture(found, backend)
