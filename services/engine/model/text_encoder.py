"""Encoders such as BERT: whole texts at once, in both directions, without a KV cache.

The engine's books are kept as for any other model, over blocks that hold next to nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from connectors.kv.base import Fence
from protocol.errors import ConfigError
from protocol.pooling import Pooler, PoolingParams
from protocol.refs import KVGroup, KVLayout
from services.engine.config import EngineConfig
from services.engine.containment import contained
from services.engine.model.embedding_layout import EmbeddingLayout
from services.engine.model.loader import load_text_encoder, parameter_bytes, read_config
from services.engine.model.runner import failed_chunk
from services.engine.model.step_upload import fence_on
from services.engine.model.token_heads import TokenHeads
from services.engine.sampling.pooler import VectorPooler
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.seams import Sampled

_UNLIKE = 2  # a text that is so many times shorter is not padded to another's length
_TYPES = "token_type_ids"


def encoder_config(config: EngineConfig) -> EngineConfig:
    """With steps that take any whole input, and nothing kept of one. `ConfigError` names a flag
    that such a model does not take."""
    if config.quantization:
        raise ConfigError("--quantization: encoders of text cannot be quantized")
    # Enough for `max_num_seqs` of the longest inputs, so that none waits for blocks.
    blocks = -(-config.max_model_len // config.block_size) * config.max_num_seqs
    return msgspec.structs.replace(
        config,
        prefix_caching=False,
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_model_len),
        num_blocks=blocks,
        kv_host_bytes=0,
        kv_disk_bytes=0,
        kv_cache_dtype="auto",
    )


class TextEncoder:
    """Weights, and what the engine asks of a model."""

    uses_mrope = takes_media = bidirectional_media = windowed_media = False
    adapters = None

    def __init__(self, model_dir: Path, dtype: torch.dtype, device: str, pooler: Pooler) -> None:
        """`ConfigError` if the directory holds no such model."""
        self.config = read_config(model_dir)
        self.text_config = self.config.get_text_config()
        self.device, self.dtype = device, dtype
        self._pooler = pooler
        self.token_heads = TokenHeads(model_dir, pooler, device)
        headed = pooler.task != "embed"
        self._model: Any = load_text_encoder(model_dir, self.config, dtype, device, head=headed)
        typed = _TYPES in inspect.signature(self._model.forward).parameters
        # RoBERTa takes them and has one type only.
        self._typed = typed and getattr(self.config, "type_vocab_size", 0) > 1
        self._padding = int(getattr(self.config, "pad_token_id", 0) or 0)
        self.parameter_bytes = parameter_bytes(self._model)

    @property
    def module(self) -> torch.nn.Module:
        return self._model  # type: ignore[no-any-return]

    @property
    def embedding_layout(self) -> EmbeddingLayout:
        """Of pictures, which there are none of."""
        return EmbeddingLayout(1, 0, self.dtype, self.device)

    def kv_layout(self, block_size: int) -> KVLayout:
        """Of blocks that are only counted."""
        name = str(self.dtype).removeprefix("torch.")
        return KVLayout((KVGroup((0,), 1, 1, 1, 0),), block_size, name)

    def rows(
        self, inputs: Sequence[Sequence[int]], seconds: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(float[B, hidden], or logits of the head, of each input; float[B, T, hidden] of its
        tokens, of a model without such a head). `seconds`: with which token the second text of a
        pair begins, 0 for none."""
        lengths = torch.tensor([len(one) for one in inputs])
        width = int(lengths.max())
        ids = torch.tensor([[*one, *[self._padding] * (width - len(one))] for one in inputs])
        place = torch.arange(width).expand(len(inputs), width)
        mask = place < lengths[:, None]
        keywords = {"input_ids": ids.to(self.device), "attention_mask": mask.long().to(self.device)}
        if self._typed:
            starts = torch.tensor(seconds)[:, None]
            types = (starts > 0) & (place >= starts) & mask
            keywords[_TYPES] = types.long().to(self.device)
        output = self._model(**keywords)
        if self._pooler.task != "embed":
            return output.logits, torch.empty(0)
        hidden = output.last_hidden_state.float()
        return self._pooled(hidden, mask.to(self.device)), hidden

    def _pooled(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """hidden [B, T, H], mask bool[B, T] → [B, H]."""
        if self._pooler.pooling == "cls":
            return hidden[:, 0]
        weights = mask[..., None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


class EncoderRunner:
    """`services.engine.scheduling.seams.StepRunner` whose chunks are whole inputs."""

    def __init__(self, model: TextEncoder, pooler: VectorPooler) -> None:
        self._model = model
        self._pooler = pooler

    def run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        """An answer for each chunk, or its failure."""
        return contained(self._run, chunks, failed_chunk)

    def fence(self) -> Fence | None:
        """See `services.engine.scheduling.seams.StepRunner`."""
        return fence_on(self._model.device)

    @torch.inference_mode()
    def _run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        made: list[Sampled] = []
        # In another order than the chunks: each answer names its request.
        for group in _alike(chunks):
            made += self._answers(group)
        return made

    def _answers(self, group: Sequence[Chunk]) -> Iterator[Sampled]:
        wanted = [_wanted(chunk) for chunk in group]
        seconds = [one.second for one in wanted]
        rows, hidden = self._model.rows([chunk.token_ids for chunk in group], seconds)
        whole = [index for index, one in enumerate(wanted) if one.form == "vector"]
        yield from self._pooler.sample(rows[whole], [group[index].request for index in whole])
        for index, (chunk, one) in enumerate(zip(group, wanted, strict=True)):
            if one.form != "vector":
                tokens = hidden[index, : chunk.count]
                answer = self._model.token_heads.answer(one.form, tokens)
                yield self._pooler.of_tokens(chunk.request, answer)


def _wanted(chunk: Chunk) -> PoolingParams:
    wanted = chunk.request.source.pooling
    assert wanted is not None
    return wanted


def _alike(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Groups of about one length, so that little is computed for padding."""
    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda one: -one.count):
        if group and group[0].count > _UNLIKE * chunk.count:
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group
