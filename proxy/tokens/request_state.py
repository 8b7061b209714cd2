"""A rendered request over all its attempts: what the client has of it, and what is left.

How far each choice has come is counted for the request, and for each call on its own: what a worker
says that cannot be is its own fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from protocol.errors import RequestAborted, UpstreamError
from protocol.types import GenerateRequest, RequestOutput
from proxy.placement.planner import ModelNames
from proxy.request_state import RequestState

ANY_TOKEN = 1 << 31  # more than any vocabulary has


@dataclass
class Choices:
    """`counts` has the tokens of every choice that was asked for, at most `most`; `ended` are those
    that get no more, which are all once it is `complete`. Token ids are below `vocab_size`.

    Of one call, where `of` has filled them: `cacheable` tokens may have been cached, with `shows`
    each token has its log-probability, and so many tokens of the prompt have theirs (`scored`),
    which come with the first tokens.
    """

    counts: dict[int, int]
    most: int
    vocab_size: int = ANY_TOKEN
    cacheable: int = ANY_TOKEN
    shows: bool = False
    scored: int | None = None
    ended: set[int] = field(default_factory=set)
    complete: bool = False

    @staticmethod
    def of(request: GenerateRequest, vocab_size: int = ANY_TOKEN, *, call: bool = True) -> Choices:
        """As they are when `request` is sent. `call`: of this call alone."""
        emitted, sampling = request.emitted, request.sampling
        names = sorted(emitted) or range(sampling.n)
        counts = {index: len(emitted.get(index, ())) for index in names}
        found = Choices(counts, sampling.max_tokens, vocab_size)
        if call:
            prompt = len(request.token_ids)
            found.cacheable = prompt + max(counts.values(), default=0)
            found.shows = sampling.logprobs is not None
            found.scored = 0 if sampling.prompt_logprobs is None else max(0, prompt - 1)
        return found

    @property
    def begun(self) -> bool:
        """Whether every choice has a token, or has ended without."""
        return all(count or index in self.ended for index, count in self.counts.items())

    def take(self, outputs: Iterable[RequestOutput]) -> None:
        """Count `outputs`, all or none: `UpstreamError` or `RequestAborted` if a worker that does
        what it was asked would not have said so."""
        # On copies, so that nothing of outputs that cannot be is counted.
        counts, ended, scored = dict(self.counts), set(self.ended), self.scored
        for output in outputs:
            index = output.index
            if index not in counts or index in ended:
                raise UpstreamError(
                    f"the worker sent an output of choice {index}, which is not under way"
                )
            if output.finish_reason in ("abort", "error"):
                raise RequestAborted("the worker gave the request up")
            self._check_tokens(output)
            self._check_counts(output)
            if scored is not None:
                scored -= len(output.prompt_logprobs or ())
            counts[index] += len(output.token_ids)
            if counts[index] > self.most:
                raise UpstreamError(f"choice {index} has more tokens than were asked for")
            if output.finish_reason is not None:
                ended.add(index)
        if scored and (scored < 0 or ended or counts != self.counts):
            raise UpstreamError("the worker did not score the prompt as it was asked to")
        self.counts, self.ended, self.scored = counts, ended, scored
        self.complete = len(ended) == len(counts)

    def _check_counts(self, output: RequestOutput) -> None:
        tokens, shown = len(output.token_ids), len(output.logprobs or ())
        if shown != tokens and (shown or self.shows):
            raise UpstreamError(f"{tokens} tokens came with {shown} log-probabilities")
        if not 0 <= (output.cached_tokens or 0) <= self.cacheable:
            raise UpstreamError(f"{output.cached_tokens} of {self.cacheable} tokens were cached")

    def _check_tokens(self, output: RequestOutput) -> None:
        for token in output.token_ids:
            self._check(token)
        for position in (*(output.logprobs or ()), *(output.prompt_logprobs or ())):
            self._check(position.token_id)
            for other in position.top_logprobs:
                self._check(other.token_id)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise UpstreamError(f"token {token} is not in the vocabulary")


def unscored(wanted: GenerateRequest) -> GenerateRequest:
    """For a worker that does not compute the prompt first: its scores are another's to tell."""
    if wanted.sampling.prompt_logprobs is None:
        return wanted
    sampling = msgspec.structs.replace(wanted.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(wanted, sampling=sampling)


@dataclass(kw_only=True)
class TokensRequest(RequestState):
    """What its client wants, and has had."""

    request: GenerateRequest  # as it was rendered
    media: Mapping[str, bytes]  # by mm_hash, kept to its end: a picture may be encoded again
    vocab_size: int = ANY_TOKEN  # token ids are below
    names: ModelNames = field(default_factory=ModelNames)  # of its model
    complete: bool = field(init=False, default=False)  # its client has all of the answer
    _emitted: dict[int, list[int]] = field(init=False)  # token ids that the client has, by choice
    _choices: Choices = field(init=False)  # how far each choice has come
    _counted: set[int] = field(default_factory=set)  # choices whose cached tokens were told

    def __post_init__(self) -> None:
        self._choices = Choices.of(self.request, self.vocab_size, call=False)
        emitted = self.request.emitted
        self._emitted = {index: list(emitted.get(index, ())) for index in self._choices.counts}

    def choices(self, wanted: GenerateRequest) -> Choices:
        """Those of a call for this request."""
        return Choices.of(wanted, self.vocab_size)

    @property
    def begun(self) -> bool:
        return any(self._emitted.values()) or bool(self._choices.ended)

    def wanted(self) -> GenerateRequest:
        """What is left to do, as the next attempt; every attempt has an id of its own, so that what
        a former one has left behind cannot be taken for it."""
        name = self.request.request_id
        ended = self._choices.ended
        emitted = {i: list(tokens) for i, tokens in self._emitted.items() if i not in ended}
        wanted = msgspec.structs.replace(
            self.request,
            request_id=f"{name}~{self.attempt}" if self.attempt else name,
            emitted=emitted if self.begun else {},
        )
        return unscored(wanted) if self.begun else wanted

    def passed(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """`outputs` of the attempt under way, on their way to the client. Raises as `Choices.take`
        does, and then nothing of them counts."""
        self._choices.take(outputs)
        self.complete = self._choices.complete
        for output in outputs:
            self._emitted[output.index] += output.token_ids
            if output.index in self._counted:
                output.cached_tokens = None
            elif output.cached_tokens is not None:
                self._counted.add(output.index)
            if output.token_ids:
                self.progressed()
        return outputs
