"""Runs one step: packs the chunks into tensors, calls the model, samples."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from connectors.base import EC_TENSOR
from connectors.kv.base import Fence
from protocol.errors import TriptychError
from services.engine.attention.kv_cache import KVCache
from services.engine.containment import contained, told
from services.engine.model.adapters import AdapterRows
from services.engine.model.decode_graphs import DecodeGraphs
from services.engine.model.decode_steps import DecodeSteps
from services.engine.model.language import Inputs, LanguageModel
from services.engine.model.step_tokens import (
    BlockTables,
    StepTokens,
    batch_of,
    placed,
    rotary_positions,
    rows_by_adapter,
)
from services.engine.model.step_upload import fence_on, upload
from services.engine.sampling.pooler import VectorPooler
from services.engine.sampling.prompt_logprobs import score_prompts, scored_rows
from services.engine.sampling.sampler import Sampler, checked
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.embedding_cache import EmbeddingCache
from services.engine.scheduling.request import Request
from services.engine.scheduling.seams import Drafter, Sampled

logger = logging.getLogger(__name__)
IntArray = NDArray[Any]
Media = list[tuple[IntArray, dict[str, torch.Tensor]]]


class Runner:
    """Owns the step's tensors; the model, the cache and the embeddings are its callers'."""

    def __init__(
        self,
        model: LanguageModel,
        cache: KVCache,
        embeddings: EmbeddingCache,
        sampler: Sampler | VectorPooler,
        graphs: DecodeGraphs | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`graphs` compute the steps that they have recorded; `drafter` guesses tokens for chunks
        that have room."""
        self._graphs = graphs
        self._drafter = drafter
        self._model = model
        self._cache = cache
        self._embeddings = embeddings
        self._sampler = sampler
        self._device = torch.device(model.device)
        self._tables = BlockTables()

    def run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        """Compute the chunks' tokens; one sampled token for each choice that reached its end, and a
        failure for each choice of a chunk that cannot be computed."""
        return contained(self._run, chunks, failed_chunk)

    @torch.inference_mode()
    def launch(self, chunks: Sequence[Chunk]) -> DecodeSteps | None:
        """A `services.engine.scheduling.seams.Launch`. None for steps that are not recorded, for
        requests with an adapter, and where a launch fails: `run` contains what fails then."""
        if self._graphs is None or not isinstance(self._sampler, Sampler):
            return None
        tokens = StepTokens.of(chunks)
        rows, samplers, _ = _sampling_rows(chunks)
        # `DecodeSteps` takes row r of the logits for request r: each chunk must sample once.
        if len(samplers) != len(chunks) or rows_by_adapter(chunks, tokens):
            return None
        arrays = self._arrays(chunks, tokens, rows, [])
        try:
            logits = self._graphs.forward(arrays)
        except Exception as error:
            logger.warning("decode steps run one at a time: %s", told(error))
            return None
        if logits is None:
            return None
        return DecodeSteps(self._graphs, self._sampler, samplers, arrays, logits)

    def fence(self) -> Fence | None:
        """See `services.engine.scheduling.seams.StepRunner`."""
        return fence_on(self._model.device)

    @torch.inference_mode()
    def _run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        chunks = self._drafted(chunks)
        tokens = StepTokens.of(chunks)
        rows, samplers, ahead = _sampling_rows(chunks)
        media = self._media(chunks)
        # Rows that are sampled come first: below, the logits are parted behind them.
        arrays = self._arrays(chunks, tokens, rows + scored_rows(chunks), media)
        adapters = rows_by_adapter(chunks, tokens)
        if adapters:
            arrays["adapter_rows"] = np.concatenate(list(adapters.values()))
        logits = self._graphs.forward(arrays) if self._graphs is not None else None
        if logits is None:
            step = upload(arrays, self._device)
            batch = batch_of(
                self._cache,
                step,
                tokens,
                [chunk.reach for chunk in chunks],
                windowed_spans=self._model.windowed_media,
            )
            inputs = self._inputs(step, media)
            if adapters:
                groups = _groups(adapters, step, len(tokens.owner))
                inputs = dataclasses.replace(inputs, adapters=groups)
            logits = self._model.forward(inputs, batch)
        score_prompts(logits[len(rows) :], chunks)
        if not samplers:
            return []
        sampled = self._sampler.sample(logits[: len(rows)], samplers, ahead)
        return checked(chunks, sampled) if any(ahead) else sampled

    def _drafted(self, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
        if self._drafter is None or not any(chunk.room for chunk in chunks):
            return chunks
        drafts = self._drafter.draft(chunks)
        return [
            structs.replace(chunk, draft=tuple(draft))
            for chunk, draft in zip(chunks, drafts, strict=True)
        ]

    def _arrays(
        self, chunks: Sequence[Chunk], tokens: StepTokens, rows: list[int], media: Media
    ) -> dict[str, IntArray]:
        """All integers of the step, under the names that `batch_of` and `_inputs` read them by."""
        tables = self._tables.of([chunk.request for chunk in chunks])
        ids = np.array(list(chain.from_iterable(chunk.token_ids for chunk in chunks)))
        arrays = {
            "ids": ids,
            "rotary": rotary_positions(chunks, tokens),
            "rows": np.array(rows, dtype=np.int64),
            **placed(tokens, tables, self._cache.block_size, [chunk.reach for chunk in chunks]),
        }
        spans = self._spans(chunks)
        if spans is not None:
            arrays["span_starts"], arrays["span_ends"] = spans
        if media:
            places = arrays["places"] = np.concatenate([place for place, _ in media])
            # A placeholder's id may lie beyond the table of embeddings; `_inputs` replaces its row.
            ids[places] = 0
            mask = arrays["media_mask"] = np.zeros(len(ids), dtype=np.bool_)
            mask[places] = True
        return arrays

    def _spans(self, chunks: Sequence[Chunk]) -> IntArray | None:
        """int64[2, T]: first and past-the-end token of the media span each token stands in."""
        if not self._model.bidirectional_media:
            return None
        spans = np.zeros((2, sum(c.width for c in chunks)), dtype=np.int64)
        base = 0
        for chunk in chunks:
            for item in chunk.request.items_in(chunk.start, chunk.end):
                first = base + max(item.offset, chunk.start) - chunk.start
                last = base + min(item.end, chunk.end) - chunk.start
                # Not cut to the chunk: attention compares the bounds with places in the request.
                spans[:, first:last] = [[item.offset], [item.end]]
            base += chunk.width
        return spans if spans.any() else None

    def _inputs(self, step: Mapping[str, torch.Tensor], media: Media) -> Inputs:
        embeds = self._model.embed(step["ids"])
        if not media:
            return Inputs(embeds, step["rotary"], step["rows"])
        embeds[step["places"]] = torch.cat([t[EC_TENSOR] for _, t in media]).to(embeds.dtype)
        extra = sorted(set(media[0][1]) - {EC_TENSOR})
        return Inputs(
            embeds,
            step["rotary"],
            step["rows"],
            media_mask=step["media_mask"],
            deepstack=tuple(torch.cat([t[name] for _, t in media]) for name in extra),
        )

    def _media(self, chunks: Sequence[Chunk]) -> Media:
        """For each run of a media item's placeholders that a chunk touches: its places among the T
        tokens, its rows there."""
        media: Media = []
        base = 0
        for chunk in chunks:
            items = () if chunk.decodes else chunk.request.items_in(chunk.start, chunk.end)
            for item in items:
                tensors, row = self._embeddings.tensors(item.mm_hash), 0
                for begin, end in item.runs:
                    first, last = max(begin, chunk.start), min(end, chunk.end)
                    if first < last:
                        places = np.arange(base + first - chunk.start, base + last - chunk.start)
                        rows = slice(row + first - begin, row + last - begin)
                        media.append((places, {name: t[rows] for name, t in tensors.items()}))
                    row += end - begin
            base += chunk.width
        return media


def _groups(
    adapters: Mapping[Any, IntArray], step: Mapping[str, torch.Tensor], width: int
) -> tuple[AdapterRows, ...]:
    """The tokens of each adapter among the step's `width`, on the device."""
    parts = step["adapter_rows"].split([len(rows) for rows in adapters.values()])
    return tuple(
        AdapterRows(adapter, None if len(rows) == width else rows)
        for adapter, rows in zip(adapters, parts, strict=True)
    )


def failed_chunk(chunk: Chunk, error: TriptychError) -> list[Sampled]:
    """For each choice that the chunk would have served."""
    choices = dict.fromkeys((chunk.request, *chunk.samplers))
    return [Sampled(choice, [], failure=error) for choice in choices]


def _sampling_rows(chunks: Sequence[Chunk]) -> tuple[list[int], list[Request], list[int]]:
    """The token after which each sampler draws, and how many guessed tokens lie before it; a chunk
    that samples nothing keeps no row."""
    rows: list[int] = []
    samplers: list[Request] = []
    ahead: list[int] = []
    last = -1
    for chunk in chunks:
        last += chunk.width
        guessed = len(chunk.draft)
        for sampler in chunk.samplers:
            rows += range(last - guessed, last + 1)
            samplers += [sampler] * (guessed + 1)
            ahead += range(guessed + 1)
    return rows, samplers, ahead
