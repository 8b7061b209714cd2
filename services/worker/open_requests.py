"""Requests that wait for outputs of the engine process, each in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from protocol.errors import ErrorInfo, RequestAborted, Unavailable, error_info, from_info
from protocol.request_record import RequestRecord
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.engine.messages import Stage


@dataclass
class Generating:
    """A request whose outputs are waited for; `left` are the choices that have not ended."""

    left: set[int]
    record: RequestRecord
    # Without a bound, as `hand` must not wait: one slow client would hold up all others.
    queue: asyncio.Queue[RequestOutput] = field(default_factory=asyncio.Queue)

    async def take(self) -> list[RequestOutput]:
        """What has arrived since the last time, at least one; an error is raised."""
        gained: list[RequestOutput] = []
        # All that is here at once: a client that lags gets fewer events, of more tokens each.
        while not gained or not self.queue.empty():
            output = await self.queue.get()
            if output.error is not None:
                raise from_info(output.error)
            if output.index in self.left:  # not of one that was aborted
                gained.append(output)
            if output.finish_reason is not None:
                self.left.discard(output.index)
        return gained

    def abort(self, request_id: str) -> None:
        """Nothing more comes from the engine."""
        for index in sorted(self.left):
            self.queue.put_nowait(RequestOutput(request_id, index, finish_reason="abort"))


@dataclass
class Encoding:
    """An encode request whose embeddings are waited for; `outputs` by mm_hash."""

    wanted: set[str]
    record: RequestRecord
    outputs: dict[str, EncodeOutput] = field(default_factory=dict)
    queue: asyncio.Queue[EncodeOutput] = field(default_factory=asyncio.Queue)

    @property
    def left(self) -> set[str]:
        return self.wanted - self.outputs.keys()

    async def finish(self) -> None:
        """Wait for the last output; an error that concerns the whole request is raised."""
        while self.left:
            output = await self.queue.get()
            if not output.mm_hash and output.error is not None:
                raise from_info(output.error)
            self.outputs[output.mm_hash] = output


class OpenRequests:
    """By request id. What comes for a request that waits no longer is dropped."""

    def __init__(self) -> None:
        self._generating: dict[str, Generating] = {}
        self._encoding: dict[str, Encoding] = {}

    @contextlib.contextmanager
    def generating(self, request: GenerateRequest, record: RequestRecord) -> Iterator[Generating]:
        """`Unavailable` while another request has the same id: its outputs would come here. It may
        be an earlier attempt, whose caller has left but was not missed yet."""
        _check_unused(request.request_id, self._generating)
        here = Generating(request.choices, record)
        self._generating[request.request_id] = here
        try:
            yield here
        finally:
            del self._generating[request.request_id]

    @contextlib.contextmanager
    def encoding(self, request: EncodeRequest, record: RequestRecord) -> Iterator[Encoding]:
        """As `generating`."""
        _check_unused(request.request_id, self._encoding)
        here = Encoding({item.mm_hash for item in request.items}, record)
        self._encoding[request.request_id] = here
        try:
            yield here
        finally:
            del self._encoding[request.request_id]

    def hand(self, outputs: Sequence[RequestOutput], encoded: Sequence[EncodeOutput]) -> None:
        """Outputs of a step, each to the request that it is of."""
        for output in outputs:
            if (here := self._generating.get(output.request_id)) is not None:
                here.queue.put_nowait(output)
        for item in encoded:
            if (waiting := self._encoding.get(item.request_id)) is not None:
                waiting.queue.put_nowait(item)

    def note(self, stages: Sequence[Stage]) -> None:
        """What traced requests have had done, for the records of those that still wait."""
        for stage in stages:
            name = stage.request_id
            here = self._generating.get(name) or self._encoding.get(name)
            if here is not None:
                here.record.begin(stage.name, stage.start).end = stage.end

    def abort(self, request_id: str) -> None:
        """End a request with the reason "abort", even if the engine still answers."""
        if (here := self._generating.get(request_id)) is not None:
            here.abort(request_id)
        if (waiting := self._encoding.get(request_id)) is not None:
            aborted = error_info(RequestAborted("the request was aborted"))
            waiting.queue.put_nowait(EncodeOutput(request_id, "", error=aborted))

    def fail(self, error: ErrorInfo) -> None:
        """End all requests with an error."""
        for request_id, here in self._generating.items():
            here.queue.put_nowait(RequestOutput(request_id, finish_reason="error", error=error))
        for request_id, waiting in self._encoding.items():
            waiting.queue.put_nowait(EncodeOutput(request_id, "", error=error))


def _check_unused(request_id: str, held: Container[str]) -> None:
    if request_id in held:
        raise Unavailable(f"request id '{request_id[:256]}' is in use", retry_after_s=1.0)
