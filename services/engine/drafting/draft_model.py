"""Guesses by a small model with the same vocabulary (arXiv:2211.17192, with greedy guesses).

It has a KV pool of its own whose blocks have the numbers of the large model's: a request's table of
blocks is good for both. What is in it of a request is known here alone; what is missing, as the
prompt when another worker has computed it, is computed before the first guess, a piece in each
step. A guess that rests on wrong KV is a poor guess and no more: every one is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from services.engine.attention.kv_cache import KVCache
from services.engine.model.language import Inputs, LanguageModel
from services.engine.model.step_tokens import (
    BlockTables,
    StepTokens,
    batch_of,
    placed,
    rotary_positions,
)
from services.engine.model.step_upload import upload
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request

logger = logging.getLogger(__name__)
_CATCH_UP = 256  # tokens of a step that are computed before guessing
_MOST_FAILURES = 3  # for want of memory, after which nothing is guessed any more

IntArray = NDArray[np.int64]


@dataclass
class _Progress:
    """What the draft model's pool holds of a request: `count` tokens, and behind them `guessed`
    ones, which may have turned out wrong."""

    count: int = 0
    guessed: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    def settle(self, request: Request, block_size: int) -> None:
        """Keep what is still true of the request."""
        for guess in self.guessed:
            if self.count >= len(request.tokens) or request.tokens[self.count] != guess:
                break
            self.count += 1
        # From the first block that is another one, as after a preemption, nothing here is its own.
        pairs = zip(self.blocks, request.blocks, strict=False)
        same = next((i for i, (ours, now) in enumerate(pairs) if ours != now), None)
        if same is None:
            same = min(len(self.blocks), len(request.blocks))
        self.count = min(self.count, same * block_size)
        self.guessed, self.blocks = [], list(request.blocks)


class DraftModel:
    """`vocabulary`: of the large model; other ids are not guessed."""

    def __init__(self, model: LanguageModel, cache: KVCache, vocabulary: int) -> None:
        self._model = model
        self._cache = cache
        self._own = model.text_config.vocab_size
        self._vocabulary = min(vocabulary, self._own)
        self._longest = int(getattr(model.text_config, "max_position_embeddings", 0)) or 1 << 62
        self._tables = BlockTables()
        self._device = torch.device(model.device)
        self._failures = 0
        self._known: WeakKeyDictionary[Request, _Progress] = WeakKeyDictionary()

    def draft(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        """See `services.engine.scheduling.seams.Drafter`."""
        if self._failures < _MOST_FAILURES:
            try:
                return self._draft(chunks)
            except Exception as error:  # of many kinds: an answer does not depend on guesses
                # What a step that failed has written is not known.
                self._known.clear()
                passing = isinstance(error, torch.OutOfMemoryError)
                self._failures += 1 if passing else _MOST_FAILURES
                logger.exception("no tokens are guessed: the draft model failed")
        return [[] for _ in chunks]

    @torch.inference_mode()
    def _draft(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        guesses: list[list[int]] = [[] for _ in chunks]
        pieces, ready = self._pieces(chunks)
        ids = [token for piece in pieces for token in piece.token_ids]
        places = {id(piece.request): place for place, piece in enumerate(pieces)}
        while pieces:
            drawn = self._compute(pieces, ids)
            following: list[Chunk] = []
            ids = []
            for piece, token in zip(pieces, drawn, strict=True):
                place = ready.get(places[id(piece.request)])
                if place is None or token >= self._vocabulary:
                    continue
                guesses[place].append(token)
                if len(guesses[place]) < chunks[place].room:
                    following.append(structs.replace(piece, start=piece.end, count=1))
                    ids.append(token)
            pieces = following
        for place, chunk in enumerate(chunks):
            if guesses[place]:
                # Nothing was computed after the last guess, so it has no KV.
                self._known[chunk.request].guessed = guesses[place][:-1]
        return guesses

    def _pieces(self, chunks: Sequence[Chunk]) -> tuple[list[Chunk], dict[int, int]]:
        """What is to be computed first, and for each piece after which tokens can be guessed, by
        its number, the chunk that it is for."""
        pieces: list[Chunk] = []
        ready: dict[int, int] = {}
        left = _CATCH_UP
        places = [place for place, chunk in enumerate(chunks) if self._may_guess(chunk)]
        known = {place: self._settled(chunks[place]) for place in places}
        # Those that lack least go first: a long prompt must not take the guesses of all others.
        for place in sorted(places, key=lambda place: chunks[place].end - known[place].count):
            if not left:
                break
            chunk, progress = chunks[place], known[place]
            count = min(left, chunk.end - progress.count)
            left -= count
            if progress.count + count == chunk.end:
                ready[len(pieces)] = place
            pieces.append(Chunk(chunk.request, progress.count, count))
            progress.count += count
        return pieces, ready

    def _may_guess(self, chunk: Chunk) -> bool:
        return chunk.room > 0 and chunk.end + chunk.room <= self._longest

    def _settled(self, chunk: Chunk) -> _Progress:
        """What is known of a request, without its last token: that is what the first guess
        follows, so it is computed again if need be."""
        known = self._known.setdefault(chunk.request, _Progress())
        known.settle(chunk.request, self._cache.block_size)
        known.count = min(known.count, chunk.start)
        return known

    def _compute(self, pieces: Sequence[Chunk], ids: Sequence[int]) -> list[int]:
        """The likeliest token after each piece; `ids` are the pieces' tokens."""
        tokens = StepTokens.of(pieces)
        tables = self._tables.of([piece.request for piece in pieces])
        contexts = [piece.end for piece in pieces]
        given = np.array(ids, dtype=np.int64)
        arrays = {
            # Any id in place of one that this model lacks, as a placeholder's: guesses are checked.
            "ids": np.where(given < self._own, given, 0),
            "rotary": self._rotary(pieces, tokens),
            "rows": np.array(tokens.starts[1:], dtype=np.int64) - 1,
            **placed(tokens, tables, self._cache.block_size, contexts),
        }
        step = upload(arrays, self._device)
        batch = batch_of(self._cache, step, tokens, contexts)
        inputs = Inputs(self._model.embed(step["ids"]), step["rotary"], step["rows"])
        return self._model.forward(inputs, batch).argmax(-1).tolist()

    def _rotary(self, pieces: Sequence[Chunk], tokens: StepTokens) -> IntArray:
        """The large model's positions where both have as many dimensions."""
        dimensions = 3 if self._model.uses_mrope else 1
        if len(pieces[0].request.positions) == dimensions:
            return rotary_positions(pieces, tokens)
        return np.tile(tokens.index, (dimensions, 1))
