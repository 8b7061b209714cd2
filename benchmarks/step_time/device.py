"""What a step takes on the device: the model, its paged cache and the sampler, without a queue."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from connectors.ec.local import LocalEC
from protocol.keys import BlockKeyChain
from protocol.types import GenerateRequest, SamplingParams
from services.engine.attention.kv_cache import (
    DTYPES,
    KVCache,
    block_bytes,
    block_elements,
    pool_dtype,
)
from services.engine.config import EngineConfig
from services.engine.hardware import kv_codes_of, resolved
from services.engine.loaded_model import ModelAdmission
from services.engine.model.decode_graphs import DecodeGraphs, capture_on
from services.engine.model.fused_layers import ops_for
from services.engine.model.language import LanguageModel
from services.engine.model.runner import Runner
from services.engine.sampling.grammar import Grammars
from services.engine.sampling.sampler import Sampler
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.request import Request

BLOCK = 16
WARM_STEPS = 2


@dataclass(frozen=True)
class Shape:
    """`batch` requests of `context` tokens each, the last `count` of them new."""

    batch: int
    context: int
    count: int = 1

    @property
    def name(self) -> str:
        if self.count == 1:
            return f"decode, batch {self.batch}, context {self.context}"
        return f"prefill, batch {self.batch}, {self.count} tokens after {self.context - self.count}"

    @property
    def blocks(self) -> int:
        return self.batch * -(-self.context // BLOCK)


class Steps:
    """Runs steps of one model. KV is what the pool happens to hold, for its values take no time,
    and every request has blocks of its own, scattered as after hours of service.

    body_bytes, head_bytes: weights of the layers, and of the product that makes logits
    """

    def __init__(
        self,
        model_dir: Path,
        dtype: str,
        device: str,
        shapes: Sequence[Shape],
        *,
        eager: bool = False,
        kv_cache_dtype: str = "auto",
    ) -> None:
        """`eager`: a GPU launches the kernels of a decode step one by one. `kv_cache_dtype`: as the
        flag of a worker."""
        config = resolved(
            EngineConfig(
                model_dir=str(model_dir), model="", revision="", parts=("language",),
                dtype=dtype, device=device, kv_cache_dtype=kv_cache_dtype,
            )
        )  # fmt: skip
        self.about = f"{model_dir.name}, {config.dtype} on {config.device}"
        if kv_cache_dtype != "auto":
            self.about += f", KV cache of {kv_cache_dtype}"
        self._model = LanguageModel(
            model_dir, DTYPES[config.dtype], config.device, config.weight_layout,
            fused=ops_for(config.device, DTYPES[config.dtype]), kv_codes=kv_codes_of(config),
        )  # fmt: skip
        text = self._model.text_config
        self.head_bytes = text.vocab_size * text.hidden_size * DTYPES[config.dtype].itemsize
        tied = self._model.config.tie_word_embeddings
        self.body_bytes = self._model.parameter_bytes - self.head_bytes * (1 if tied else 2)
        grammars = Grammars(None, self._model.text_config.vocab_size)
        self._admission = ModelAdmission(self._model, grammars)
        self._num_blocks = max(shape.blocks for shape in shapes)
        layout = self._model.kv_layout(BLOCK)
        self.kv_bytes_per_token = block_bytes(layout) // BLOCK
        capture = capture_on(config.device, enforce_eager=eager)
        pool = torch.zeros(
            self._num_blocks + 1, block_elements(layout), dtype=pool_dtype(layout),
            device=config.device,
        )  # fmt: skip
        embeddings = EmbeddingCache(LocalEC(1, 1.0, 1.0), 1, self._model.embedding_layout)
        cache = KVCache(layout, pool)
        longest = max(shape.context for shape in shapes)
        most = max((shape.batch for shape in shapes if shape.count == 1), default=1)
        graphs = None
        if capture is not None:
            graphs = DecodeGraphs(self._model, cache, capture, self._num_blocks, most, longest)
        self._runner = Runner(self._model, cache, embeddings, Sampler(()), graphs)

    def measure(self, shape: Shape, steps: int) -> float:
        """Median time of a step in ms, from chunks on the host to token ids there. On a GPU decode
        steps follow one another as in an engine, and end with the shape's context."""
        number = WARM_STEPS + steps
        times = self._in_a_row(shape, number) if shape.count == 1 else None
        return statistics.median((times or self._alone(shape, number))[WARM_STEPS:])

    def _alone(self, shape: Shape, number: int) -> list[float]:
        chunks = self._chunks(shape)
        times = []
        for _ in range(number):
            begun = time.perf_counter()
            sampled = self._runner.run(chunks)
            times.append((time.perf_counter() - begun) * 1e3)
            assert not any(one.failure for one in sampled), "the step does not fit the memory"
        return times

    def _in_a_row(self, shape: Shape, number: int) -> list[float] | None:
        """None where steps are not recorded, or the context has not so many tokens."""
        if shape.context <= number:
            return None
        launched = self._runner.launch(self._chunks(shape, number))
        times: list[float] = []
        while launched is not None and len(times) < number:
            begun = time.perf_counter()
            sampled = launched.take()
            assert not any(one.failure for one in sampled), "the step does not fit the memory"
            launched.follow([one.token_ids[0] for one in sampled])
            times.append((time.perf_counter() - begun) * 1e3)
        return times or None

    def _chunks(self, shape: Shape, back: int = 0) -> list[Chunk]:
        """`back`: how many tokens before the end of the context the last is."""
        random = np.random.default_rng(0)
        blocks = random.permutation(self._num_blocks)[: shape.blocks].reshape(shape.batch, -1)
        vocabulary = min(1000, self._model.text_config.vocab_size)
        chunks = []
        for row in range(shape.batch):
            tokens = random.integers(vocabulary, size=shape.context).tolist()
            source = GenerateRequest(f"{row}", tokens, SamplingParams(temperature=0.0))
            positions, delta = self._admission.positions(source)
            request = Request(
                source, 0, row, tokens, positions, delta, BlockKeyChain(b"", BLOCK, ())
            )
            request.blocks = blocks[row].tolist()
            start = shape.context - shape.count - back
            chunks.append(Chunk(request, start, shape.count, (request,)))
        return chunks
