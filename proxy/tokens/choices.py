"""How far the choices of a request have come, and whether what a worker says of them can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.errors import RequestAborted, UpstreamError
from protocol.types import GenerateRequest, RequestOutput

ANY_TOKEN = 1 << 31  # more than any vocabulary has


@dataclass
class Choices:
    """`counts` has the tokens of every choice that was asked for, at most `most`; `ended` are those
    that get no more. Token ids are below `vocab_size`."""

    counts: dict[int, int]
    most: int
    vocab_size: int = ANY_TOKEN
    ended: set[int] = field(default_factory=set)

    @staticmethod
    def of(request: GenerateRequest, vocab_size: int = ANY_TOKEN) -> Choices:
        """As they are when `request` is sent."""
        emitted = request.emitted
        names = sorted(emitted) or range(request.sampling.n)
        counts = {index: len(emitted.get(index, ())) for index in names}
        return Choices(counts, request.sampling.max_tokens, vocab_size)

    @property
    def complete(self) -> bool:
        return len(self.ended) == len(self.counts)

    @property
    def begun(self) -> bool:
        """Whether every choice has a token, or has ended without."""
        return all(count or index in self.ended for index, count in self.counts.items())

    def take(self, outputs: Iterable[RequestOutput]) -> None:
        """Count `outputs`, all or none: `UpstreamError` or `RequestAborted` if a worker that does
        what it was asked would not have said so."""
        counts, ended = dict(self.counts), set(self.ended)
        for output in outputs:
            index = output.index
            if index not in counts or index in ended:
                raise UpstreamError(f"an output of choice {index}, which is not under way")
            if output.finish_reason in ("abort", "error"):
                raise RequestAborted("the worker gave the request up")
            self._check_tokens(output)
            counts[index] += len(output.token_ids)
            if counts[index] > self.most:
                raise UpstreamError(f"choice {index} has more tokens than were asked for")
            if output.finish_reason is not None:
                ended.add(index)
        self.counts, self.ended = counts, ended

    def _check_tokens(self, output: RequestOutput) -> None:
        for token in output.token_ids:
            self._check(token)
        for position in output.logprobs or ():
            self._check(position.token_id)
            for other in position.top_logprobs:
                self._check(other.token_id)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise UpstreamError(f"token {token} is not in the vocabulary")
