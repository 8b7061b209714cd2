"""A rendered request over all its attempts: what the client has of it, and what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from protocol.types import GenerateRequest, MMItem, RequestOutput
from proxy.request_state import RequestState
from proxy.tokens.choices import ANY_TOKEN, Choices


@dataclass(kw_only=True)
class TokensRequest(RequestState):
    """`media`: bytes by mm_hash, kept until the request ends, so that a picture can be encoded
    again. Token ids are below `vocab_size`."""

    request: GenerateRequest
    media: Mapping[str, bytes]
    vocab_size: int = ANY_TOKEN
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
        return any(self._emitted.values()) or bool(self._choices.ended)

    @property
    def complete(self) -> bool:
        return self._choices.complete

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
                self.progressed()
        return outputs

    def with_bytes(self, wanted: GenerateRequest) -> list[MMItem]:
        """Items of an attempt whose bytes are at hand."""
        return [item for item in wanted.mm_items if item.mm_hash in self.media]
