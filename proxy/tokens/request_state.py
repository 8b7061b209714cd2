"""A request over all its attempts: what the client has of it, who has failed it, what is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from protocol.errors import (
    DeadlineExceeded,
    EmbeddingLost,
    RequestAborted,
    TriptychError,
    Unavailable,
)
from protocol.types import GenerateRequest, RequestOutput
from proxy.fleet.worker import Instance
from proxy.tokens.choices import ANY_TOKEN, Choices


def another_may_help(error: TriptychError) -> bool:
    """Whether what a worker failed at may succeed elsewhere, or a second time."""
    return error.status >= RequestAborted.status


def at_fault(error: TriptychError) -> bool:
    """Whether a worker that fails so is broken; one that is full, or whose peer is, is not."""
    blameless = error.status == Unavailable.status or isinstance(error, DeadlineExceeded)
    return another_may_help(error) and not blameless


@dataclass(frozen=True)
class Caller:
    """Whose fair share a request counts against, and what it has to do with others."""

    tenant: str = ""
    session: str = ""


@dataclass
class TokensRequest:
    """`media`: bytes by mm_hash, kept until the request ends, so that a picture can be encoded
    again. `deadline` is of `time.monotonic`. `avoid` lists workers that have failed this request.
    `failures` counts attempts in a row that brought the client nothing. Token ids are below
    `vocab_size`.
    """

    request: GenerateRequest
    media: Mapping[str, bytes]
    deadline: float
    caller: Caller = Caller()
    vocab_size: int = ANY_TOKEN
    avoid: list[Instance] = field(default_factory=list)
    attempt: int = 0
    failures: int = 0
    _emitted: dict[int, list[int]] = field(init=False)
    _choices: Choices = field(init=False)
    _counted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._choices = self.choices(self.request)
        emitted = self.request.emitted
        self._emitted = {index: list(emitted.get(index, ())) for index in self._choices.counts}

    def choices(self, wanted: GenerateRequest) -> Choices:
        """Those of a call for this request."""
        return Choices.of(wanted, self.vocab_size)

    @property
    def begun(self) -> bool:
        """Whether the client has had any of it from here."""
        return any(self._emitted.values()) or bool(self._choices.ended)

    @property
    def left_s(self) -> float:
        """Seconds left; `DeadlineExceeded` if there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the request's deadline has passed")
        return left

    def wanted(self) -> GenerateRequest:
        """What is left to do, as the next attempt; every attempt has an id of its own, so that what
        a former one has left behind cannot be taken for it."""
        name = self.request.request_id
        ended = self._choices.ended
        emitted = {i: list(tokens) for i, tokens in self._emitted.items() if i not in ended}
        return msgspec.structs.replace(
            self.request,
            request_id=f"{name}~{self.attempt}" if self.attempt else name,
            emitted=emitted if self.begun else {},
        )

    def passed(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        """`outputs` of the attempt under way, on their way to the client. Raises as `Choices.take`
        does, and then nothing of them counts."""
        self._choices.take(outputs)
        for output in outputs:
            self._emitted[output.index] += output.token_ids
            if output.index in self._counted:
                output.cached_tokens = None
            elif output.cached_tokens is not None:
                self._counted.add(output.index)
            if output.token_ids:
                self.failures = 0
        return outputs

    @property
    def complete(self) -> bool:
        return self._choices.complete

    def failed(self, error: TriptychError, most: int) -> bool:
        """Whether to try again after `error`, of at most `most` failures in a row."""
        self.attempt += 1
        self.failures += 1
        if not another_may_help(error) or time.monotonic() >= self.deadline:
            return False
        return self.failures <= most


def lost_embeddings(error: TriptychError) -> bool:
    return error.code == EmbeddingLost.code
