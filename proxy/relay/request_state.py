"""A relayed request over all its attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.fleet.worker import Instance
from proxy.placement.planner import Plan
from proxy.relay.bodies import RequestBody
from proxy.relay.cached_tokens import telling
from proxy.relay.consumer import Consumer
from proxy.relay.description import Description
from proxy.relay.media import EncodedMedia
from proxy.relay.request import ClientRequest
from proxy.relay.response import ClientResponse
from proxy.relay.resume.recorder import Recorder
from proxy.request_state import RequestState
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange


@dataclass(kw_only=True)
class RelayedRequest(RequestState):
    """A request, and what has been achieved for it.

    `client`: its headers and path; `body`: what it asks for; `response`: what its client has had.
    `fields`: header lines that go to workers. `model`: the name that the client uses.
    `source`: to be told whose stream is forwarded, None at its end.
    `start`: when it came, of `time.monotonic`.
    `description`: as a master is told of it, None before it is.
    `names`: of each media item, the mm_hash that planners know it by; empty without a master.
    `exact`: whether these names are those of our own content keys.
    `plan`: where a master has placed the attempt under way; its id there is `placed_as`.
    `media`: what encoders said.
    `handed`: prefill's handles, to be given back to `prefill` until a decode worker takes them.
    `cached_tokens`: of the prompt, what prefill found cached; None if it did not say.
    `decoder`: who was asked for the answer last.
    `consumer`: the worker that the embeddings are pushed to, None if they are not pushed.
    `recorder`: notes what it takes to resume the stream, None if that cannot be done.
    """

    client: ClientRequest
    body: RequestBody
    response: ClientResponse
    source: Callable[[Exchange | None], None]
    start: float
    description: Description | None = field(init=False, default=None)
    names: Sequence[str] = ()
    exact: bool = field(init=False, default=False)
    plan: Plan | None = field(init=False, default=None)
    placed_as: str = field(init=False, default="")
    media: EncodedMedia | None = field(init=False, default=None)
    handed: dict[str, Any] | None = field(init=False, default=None)
    prefill: ConnectionPool | None = field(init=False, default=None)
    cached_tokens: int | None = field(init=False, default=None)
    decoder: Instance | None = field(init=False, default=None)
    consumer: Consumer | None = field(init=False, default=None)
    recorder: Recorder | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.fields = self.client.fields()
        self.model = self.body.model

    def fields_at(self, url: str) -> bytes:
        """Header lines for a worker: a consumer is told which of its ranks has the embeddings."""
        if self.consumer is None or self.consumer.instance.url != url:
            return self.fields
        return self.fields + self.consumer.header

    def sinks(self) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        """What takes a stream's first events, and what takes the later ones."""
        begin: Callable[[bytes], None] = self.response.begin
        sink: Callable[[bytes], None] = self.response.forward
        if self.recorder is not None:
            begin = sink = self.recorder.feed
        if self.cached_tokens is not None and self.body.fields.get("stream_options"):
            # Only such streams tell a count; the others' events are not looked at.
            return telling(self.cached_tokens, begin), telling(self.cached_tokens, sink)
        return begin, sink

    @property
    def begun(self) -> bool:
        return self.response.started
