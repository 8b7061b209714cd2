"""What a mock engine has done by some time, and what it wants said to others by its driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.kv_events import CacheEvent
from protocol.refs import KVRef
from protocol.types import EncodeOutput, RequestOutput


@dataclass(frozen=True)
class AskKV:
    """Ask the producer for a request's KV; the answer is due in `CountedLoads.answered`."""

    ref: KVRef


@dataclass(frozen=True)
class ConfirmKV:
    """Tell the producer that all is copied; its answer is due in `CountedLoads.confirmed`."""

    ref: KVRef
    generation: int


@dataclass(frozen=True)
class KeepKV:
    """Renew the lease of KV that waits to be fetched."""

    ref: KVRef


@dataclass(frozen=True)
class ReleaseKV:
    """Tell the producer that this KV is not wanted here."""

    ref: KVRef


@dataclass(frozen=True)
class AskEmbedding:
    """Find an embedding at an encoder; the answer is due in `CountedEC.found`."""

    mm_hash: str
    host: str = ""
    port: int = 0


Action = AskKV | ConfirmKV | KeepKV | ReleaseKV | AskEmbedding


@dataclass
class Step:
    """What happened by now, and what the driver is to do for it."""

    outputs: list[RequestOutput] = field(default_factory=list)  # tokens and ends of choices
    encoded: list[EncodeOutput] = field(default_factory=list)  # answers about pictures
    # questions to other workers, for the driver to ask
    actions: list[Action] = field(default_factory=list)
    # requests whose KV need not be waited for any more
    settled: list[str] = field(default_factory=list)
    kv_events: list[CacheEvent] = field(default_factory=list)  # changes of the prefix cache
    # changes of the embeddings that others may fetch
    ec_events: list[CacheEvent] = field(default_factory=list)
    # from when to when something was computed that has ended by now
    worked: list[tuple[float, float]] = field(default_factory=list)
    # when there is more, None: not before something is added or answered
    next_time: float | None = None
