"""Which tokens a request allows, with or without a grammar: `allowed_token_ids`, `bad_words`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidRequest
from protocol.types import SamplingParams
from services.engine.scheduling.request import Constraint


def restricted(
    grammar: Constraint | None, sampling: SamplingParams, vocabulary: int
) -> Constraint | None:
    """`grammar` and the request's own rules as one; None if it has neither."""
    if not (sampling.allowed_token_ids or sampling.bad_words):
        return grammar
    return TokenRules(grammar, sampling, vocabulary)


class TokenRules:
    """One choice's way through the rules, and through its grammar if it has one."""

    def __init__(
        self, grammar: Constraint | None, sampling: SamplingParams, vocabulary: int
    ) -> None:
        self._grammar = grammar
        self._sampling = sampling
        self._vocabulary = vocabulary
        self._listed = np.full(vocabulary, not sampling.allowed_token_ids)
        self._listed[list(sampling.allowed_token_ids)] = True
        self._longest = max((len(word) for word in sampling.bad_words), default=1)

    @property
    def ready(self) -> bool:
        """Whether `allowed` can be asked."""
        return self._grammar is None or self._grammar.ready

    def another(self) -> TokenRules:
        """For another choice of the same request."""
        grammar = None if self._grammar is None else self._grammar.another()
        return TokenRules(grammar, self._sampling, self._vocabulary)

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Which tokens may follow `output`. bool[V]

        The last token of a bad word is out where the word's other tokens have just come.
        `InvalidRequest` if nothing is left.
        """
        mask = self._listed.copy()
        if self._grammar is not None:
            mask &= self._grammar.allowed(output)
        tail = list(output[max(0, len(output) - self._longest + 1) :])
        for *before, last in self._sampling.bad_words:
            if not before or tail[-len(before) :] == before:
                mask[last] = False
        if not mask.any():
            raise InvalidRequest(
                "allowed_token_ids, bad_words and the grammar leave no token",
                param="allowed_token_ids" if self._sampling.allowed_token_ids else "bad_words",
            )
        return mask
