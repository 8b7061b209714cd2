"""A relayed request over all its attempts: what a master is told of it, and who has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol.encoder_cache import RANK_HEADER
from protocol.types import Role
from proxy.fleet.worker import Instance
from proxy.placement.planner import ModelNames, Need, Plan
from proxy.relay.bodies import RequestBody
from proxy.relay.media import EncodedMedia
from proxy.relay.request import ClientRequest
from proxy.relay.response import ClientResponse
from proxy.relay.response_validation import going_on
from proxy.relay.resume.recorder import Recorder
from proxy.request_state import RequestState
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange

# A quote inside a JSON string has a backslash before it, so that no text looks like this.
_NAME = b'"cached_tokens"'
_COUNT = re.compile(_NAME + rb"\s*:\s*\d+")


class ServedAs(NamedTuple):
    """What a rendered prompt and its keys owe to the fleet: the name by which the frontend renders
    for the model that is asked for, the revision of its adapter, the names in content keys."""

    name: str | None
    adapter_revision: str
    keyed: ModelNames


@dataclass(frozen=True)
class Description:
    """`need`: of every attempt, but for its id. `names`: of each media item. `exact`: whether these
    are our own content keys. `asked`: the model as the client names it. `served_as`: with what of
    the fleet it was made; it holds as long as that does."""

    need: Need
    names: Sequence[str]
    exact: bool
    asked: str | None
    served_as: ServedAs


@dataclass(frozen=True)
class Consumer:
    """One request's consumer.

    `stage`: what it is asked to do with the embeddings.
    `rank`: its data-parallel rank that has the request.
    `address`: where encoders push embeddings to; "": it fetches them.
    `header`: the header line that binds the request to the rank, empty if there is one rank.
    """

    instance: Instance
    stage: Role
    rank: int = 0
    address: str = ""
    header: bytes = b""

    @staticmethod
    def bound(instance: Instance, stage: Role) -> Consumer:
        """With the rank that has the fewest requests, which counts this one until `leave`."""
        addresses = instance.ec_zmq_addrs
        if not addresses:
            return Consumer(instance, stage)
        rank = instance.enter_rank()
        header = f"{RANK_HEADER}: {rank}\r\n".encode() if len(addresses) > 1 else b""
        return Consumer(instance, stage, rank, addresses[rank], header)

    def leave(self) -> None:
        """The attempt has ended."""
        if self.address:
            self.instance.leave_rank(self.rank)


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
    `kv_compatibility`: of the KV that prefill has computed, "" if that is not known.
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
    kv_compatibility: str = field(init=False, default="")
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

    def sinks(self, url: str) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        """What takes the first events of the stream of the worker at `url`, which have been
        checked, and what takes the later ones."""
        self.response.held = b""  # of an attempt before
        begin: Callable[[bytes], None] = self.response.offer
        sink: Callable[[bytes], None] = self.response.show
        if self.recorder is not None:
            begin = sink = self.recorder.feed
        sink = going_on(url, sink)
        if self.cached_tokens is not None and self.body.fields.get("stream_options"):
            # Only such streams tell a count; the others' events are not looked at.
            return recounted(self.cached_tokens, begin), recounted(self.cached_tokens, sink)
        return begin, sink

    @property
    def begun(self) -> bool:
        return self.response.started


def with_cached_tokens(data: bytes, count: int) -> bytes:
    """An answer, or whole events of one, with this count wherever it tells one."""
    if _NAME not in data:
        return data
    return _COUNT.sub(b"%b:%d" % (_NAME, count), data)


def recounted(count: int, sink: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """`sink`, which sees this count."""
    return lambda events: sink(with_cached_tokens(events, count))
