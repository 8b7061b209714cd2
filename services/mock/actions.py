"""What a mock engine wants said to others; its driver says it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.refs import KVRef


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
