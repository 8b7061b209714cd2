"""Beam search, as transformers' `generate` does it: which sequences go on, and which are the best.

No model is run here: a step takes the likeliest next tokens of every beam.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.types import FinishReason, PositionLogprobs, SamplingParams


@dataclass(frozen=True)
class Beam:
    """An output so far; `total` is the sum of its tokens' log-probabilities."""

    token_ids: tuple[int, ...] = ()
    total: float = 0.0
    positions: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True)
class EndedBeam:
    """`score`: its total divided by its length to the power of the length penalty."""

    beam: Beam
    score: float
    reason: FinishReason
    stop: int | None


@dataclass
class BeamSearch:
    """`ends`: tokens that end an output, with what is told as its stop reason."""

    sampling: SamplingParams
    ends: Mapping[int, int | None]
    running: list[Beam] = field(default_factory=lambda: [Beam()])
    ended: list[EndedBeam] = field(default_factory=list)  # the best first
    done: bool = False

    @property
    def length(self) -> int:
        """Tokens of each running beam."""
        return len(self.running[0].token_ids)

    def advance(self, following: Sequence[PositionLogprobs]) -> None:
        """What may follow each running beam."""
        width, sampling = self.sampling.beam_width, self.sampling
        length = self.length + 1
        # Enough for `width` beams that go on, though each of them may also end in every way.
        kept = self._candidates(following)[: max(2, 1 + len(self.ends)) * width]
        # As in transformers: an end that is not among the likeliest `width` does not count.
        for beam in kept[:width]:
            if self._ends(beam):
                self._end(beam)
        self.running = [beam for beam in kept if not self._ends(beam)][:width]
        full = len(self.ended) == width
        # A single beam is greedy: it ends where it ends.
        self.done = not self.running or (full and (sampling.early_stopping is True or width == 1))
        if full and not self.done:
            # With a penalty above 0 a beam may still gain by its length, up to the longest.
            far = sampling.early_stopping == "never" and sampling.length_penalty > 0.0
            best = self._score(self.running[0], sampling.max_tokens if far else length)
            self.done = best <= self.ended[-1].score

    def best(self) -> list[EndedBeam]:
        """As many as were asked for."""
        return self.ended[: self.sampling.n]

    def _candidates(self, following: Sequence[PositionLogprobs]) -> list[Beam]:
        """Every beam with every token that may follow it, the likeliest first."""
        shown = self.sampling.logprobs or 0
        barred = self.ends if self.length < self.sampling.min_tokens else ()
        found = []
        for beam, position in zip(self.running, following, strict=True):
            for token in position.top_logprobs:
                if token.token_id in barred:
                    continue
                told = PositionLogprobs(
                    token.token_id, token.logprob, token.rank, position.top_logprobs[:shown]
                )
                found.append(
                    Beam(
                        (*beam.token_ids, token.token_id),
                        beam.total + token.logprob,
                        (*beam.positions, told),
                    )
                )
        return sorted(found, key=lambda beam: -beam.total)

    def _ends(self, beam: Beam) -> bool:
        last = beam.token_ids[-1]
        return last in self.ends or len(beam.token_ids) == self.sampling.max_tokens

    def _end(self, beam: Beam) -> None:
        last = beam.token_ids[-1]
        stopped = last in self.ends
        score = self._score(beam, len(beam.token_ids))
        reason: FinishReason = "stop" if stopped else "length"
        self.ended.append(EndedBeam(beam, score, reason, self.ends.get(last)))
        self.ended.sort(key=lambda ended: -ended.score)
        del self.ended[self.sampling.beam_width :]

    def _score(self, beam: Beam, length: int) -> float:
        return beam.total / math.pow(length, self.sampling.length_penalty)
