"""Guesses by looking back: what followed the last few tokens when they stood together before.

Answers that quote their prompt, as edits, summaries and structured outputs do, repeat long pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.request import Request

IntArray = NDArray[np.int64]


class PromptLookup:
    """`shortest` to `longest` last tokens are looked for among those before them. `vocabulary`: ids
    from it on, as media placeholders have in some families, have no embedding and are not
    guessed."""

    def __init__(self, shortest: int, longest: int, vocabulary: int) -> None:
        self._shortest = shortest
        self._longest = longest
        self._vocabulary = vocabulary
        self._known: WeakKeyDictionary[Request, _Known] = WeakKeyDictionary()

    def draft(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        """See `services.engine.scheduling.seams.Drafter`."""
        return [self._guess(chunk) if chunk.room else [] for chunk in chunks]

    def _guess(self, chunk: Chunk) -> list[int]:
        tokens = self._known.setdefault(chunk.request, _Known()).of(chunk.request)
        guess = continuation(tokens, self._shortest, self._longest, chunk.room)
        beyond = (place for place, token in enumerate(guess) if token >= self._vocabulary)
        return guess[: next(beyond, len(guess))]


class _Known:
    """A request's tokens as an array that grows with them."""

    def __init__(self) -> None:
        self._array: IntArray = np.zeros(0, dtype=np.int64)
        self._filled = 0

    def of(self, request: Request) -> IntArray:
        count = len(request.tokens)
        if count > len(self._array):
            # Twice what is needed, so that a further token is seldom a new array.
            grown = np.zeros(2 * count, dtype=np.int64)
            grown[: self._filled] = self._array[: self._filled]
            self._array = grown
        self._array[self._filled : count] = request.tokens[self._filled :]
        self._filled = count
        return self._array[:count]


def continuation(tokens: IntArray, shortest: int, longest: int, most: int) -> list[int]:
    """Up to `most` tokens that followed the latest place before the end where the most of the last
    `longest` tokens stood; [] if fewer than `shortest` did."""
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    matched = min(1, len(ends))
    while 0 < matched < longest:
        further = ends[ends >= matched]
        further = further[tokens[further - matched] == tokens[last - matched]]
        if not len(further):
            break
        ends, matched = further, matched + 1
    if matched < shortest:
        return []
    # What is repeated may reach into its own repetition: then it goes round.
    period = last - int(ends[-1])
    found = tokens[last + 1 - period : last + 1]
    return [int(found[place % period]) for place in range(most)]
