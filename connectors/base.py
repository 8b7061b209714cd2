"""What the engine asks of an EC (encoder cache) connector over any transport: a producer puts
the tensors of a media item under its mm_hash, consumers get them. For KV see `connectors.kv.base`.

What takes time is polled from the engine's step loop: calls return at once, except that embeddings
on shared storage are written and read before they do. Every handle has
one owner and one end: done, failed, released or expired.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from connectors.meter import Meter, TransferStats
from protocol.errors import InvalidRequest

if TYPE_CHECKING:  # engines without a model have connectors too
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"
EC_TENSOR = "ec_cache"
MAX_HASH = 256
"""Characters of the longest mm_hash."""


class ECLoad(ABC):
    """A consumer's request for one entry."""

    @abstractmethod
    def poll(self) -> Tensors | None:
        """The entry's tensors, or None while it is not there yet.

        Raises `TransferError` if it will not come.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Give up; idempotent, also after success."""


@dataclass(frozen=True)
class Entry:
    """An entry on its way into a store. `holders` are the requests that it is to be kept for; ""
    stands for one whose id is not known. `deadlines` (monotonic clock) of those whose leases have
    begun: it was stored before."""

    tensors: Tensors
    holders: tuple[str, ...]
    deadlines: Mapping[str, float] = field(default_factory=dict)

    def held(self, now: float) -> bool:
        """Whether a request or a peer still needs it."""
        return any(self.deadlines.get(holder, math.inf) > now for holder in self.holders)


Changed = Callable[[str, int, int], None]
"""Told of each entry that comes into an instance's store, with its rows and bytes, and of each that
leaves, with 0 and 0."""


def no_listener(mm_hash: str, rows: int, size_bytes: int) -> None:
    pass


class ECConnector(ABC):
    """Embeddings by mm_hash. An entry's main tensor is `ec_cache` [tokens, hidden].

    Producer: `offer` an entry, which is complete from the start. Consumer: `fetch` it, which the
    load confirms, and `release` it once no request needs it. The verbs are those of `KVConnector`.
    """

    meter: Meter

    def check_name(self, mm_hash: str) -> None:
        """`InvalidRequest` if an entry cannot have this name."""
        if not 0 < len(mm_hash) <= MAX_HASH:
            raise InvalidRequest(
                f"mm_hash: '{mm_hash[:64]}' is not the name of a media item", param="mm_hash"
            )

    @abstractmethod
    def offer(self, mm_hash: str, entry: Entry) -> dict[str, Any] | None:
        """Store an entry; returns what consumers need to find it (for `ec_transfer_params`), None
        while entries that must stay leave no room: try again later.

        May evict entries that are kept for no request, least recently used first. Raises
        `TransferError` if the entry can never be stored.
        """

    def wanted(self, mm_hash: str) -> bool:
        """Whether a consumer is waiting for an entry that is not stored."""
        return False

    def swap(self, mm_hash: str, entry: Entry, left: dict[str, Entry]) -> dict[str, Any] | None:
        """`offer` for an entry that a consumer waits for. Entries that are kept for requests whose
        consumer has not asked yet make room: they go into `left`, for the caller to offer again,
        also where this one is not stored. None if entries under transfer leave no room."""
        return self.offer(mm_hash, entry)

    @abstractmethod
    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        """What `offer` returned for an entry that is still held, else None. Counts as a use; it is
        kept for `holder` from here on."""

    @abstractmethod
    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        """Ask for an entry; `params` is its `ec_transfer_params` value, None to look it up."""

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:  # noqa: B027
        """The request `holder`, here at the consumer, does not need an entry any more."""

    def endpoint(self) -> dict[str, Any]:
        """The part of `offer`'s answer that is known before there is any entry; empty if entries
        are found without it."""
        return {}

    def poll(self, pending: Container[str] = ()) -> None:  # noqa: B027 — most have nothing to do
        """Advance background work; called once per engine step. `pending` are the entries on their
        way into the store: who waits for another one is told, after a while, that it will not come.
        """

    @property
    def active(self) -> bool:
        """Whether `poll` must be called soon, as bytes may be moving."""
        return False

    @property
    def awaited(self) -> int:
        """Entries of this instance that are kept for requests, or being read; the others may be
        evicted."""
        return 0

    def stats(self) -> TransferStats:
        return self.meter.snapshot()

    @abstractmethod
    def clear(self) -> None:
        """Drop every entry this instance offered."""

    @abstractmethod
    def close(self) -> None:
        """Release everything this instance owns; idempotent."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the books, [] if nothing."""
