"""Outputs held to a grammar: which tokens may come next. Grammars are compiled and followed by
llguidance, which needs milliseconds for the first and microseconds for the second."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from protocol.errors import ConfigError, InvalidRequest, Unavailable
from services.frontend.grammars.json_schema import bounded
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
_KEPT = 64
_MOST_WAITING = 256
_MAX_STATES = 50_000  # of a lexer, 1 to 2 kB each


class GrammarConstraint:
    """One choice's way through a grammar."""

    def __init__(self, compiled: Future[LLMatcher], vocabulary: int) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._matcher: LLMatcher | None = None
        self._followed = 0

    @property
    def ready(self) -> bool:
        """Whether `allowed` can be asked; until then the grammar is being compiled."""
        return self._compiled.done()

    def another(self) -> GrammarConstraint:
        """For another choice of the same request."""
        return GrammarConstraint(self._compiled, self._vocabulary)

    def allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        """Which tokens may follow `output`, which goes on from that of the last call. bool[V]

        At the grammar's end only tokens that end the answer may. `InvalidRequest` if the grammar
        does not compile, takes too much to follow, or the output is none of its.
        """
        matcher = self._matcher = self._matcher or self._begin()
        for token in output[self._followed :]:
            if not matcher.is_stopped():
                matcher.consume_token(token)
        self._followed = len(output)
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        # The library does not raise: a grammar that did not compile shows here, too.
        if matcher.is_error() or not bits.any():
            why = bounded(matcher.get_error()) or "the grammar allows no further token"
            raise InvalidRequest(f"grammar: {why}", param="grammar")
        return np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_)

    def _begin(self) -> LLMatcher:
        failure = self._compiled.exception()  # none is known to be raised, not even by the library
        if failure is not None:
            raise InvalidRequest(f"grammar: {failure}", param="grammar")
        # What was compiled stays at the grammar's beginning, for other choices and requests.
        return self._compiled.result().deep_copy()


class Grammars:
    """Compiles grammars in a thread, while their prompts are computed; keeps the last ones."""

    def __init__(self, tokenizer: LLTokenizer | None, vocabulary: int) -> None:
        """`tokenizer` None: grammars are refused."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._limits = LLParserLimits(max_lexer_states=_MAX_STATES, verbose_errors=False)
        self._pool = ThreadPoolExecutor(1, "grammar")
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()

    @staticmethod
    def load(model_dir: Path, vocabulary: int, eos_token_ids: Sequence[int]) -> Grammars:
        """For logits of so many tokens. A large vocabulary takes a second or two, in which no other
        thread runs: do it before there are steps."""
        return Grammars(_tokenizer(model_dir, vocabulary, eos_token_ids), vocabulary)

    def constraint(self, grammar: str) -> GrammarConstraint | None:
        """For a request's first choice; None without a grammar.

        `InvalidRequest` if this model takes none, `Unavailable` if too many wait to be compiled.
        """
        if not grammar:
            return None
        if self._tokenizer is None:
            raise InvalidRequest(
                "structured output is not available: this model's tokenizer takes no grammars",
                param="grammar",
            )
        return GrammarConstraint(self._compile(grammar, self._tokenizer), self._vocabulary)

    def _compile(self, grammar: str, tokenizer: LLTokenizer) -> Future[LLMatcher]:
        found = self._compiled.get(grammar)
        if found is None:
            waiting = sum(not future.done() for future in self._compiled.values())
            if waiting >= _MOST_WAITING:
                raise Unavailable(
                    "too many grammars wait to be compiled; try again later", retry_after_s=1.0
                )
            found = self._pool.submit(
                LLMatcher, tokenizer, grammar, log_level=0, limits=self._limits
            )
            self._compiled[grammar] = found
        self._compiled.move_to_end(grammar)
        self._forget()
        return found

    def _forget(self) -> None:
        """Those that have not been asked for in the longest time, but none that is waited for."""
        for name in [name for name, future in self._compiled.items() if future.done()]:
            if len(self._compiled) <= _KEPT:
                return
            del self._compiled[name]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _tokenizer(
    model_dir: Path, vocabulary: int, eos_token_ids: Sequence[int]
) -> LLTokenizer | None:
    if not eos_token_ids:
        return None
    try:
        serialized = Tokenizer.load(ModelInfo.load(model_dir)).serialized()
        return LLTokenizer(serialized, n_vocab=vocabulary, eos_token=list(eos_token_ids))
    except (ConfigError, ValueError, RuntimeError) as error:
        logger.warning("requests with structured output will be refused: %s", error)
        return None
