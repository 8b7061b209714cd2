"""What the engine asks of a connector, whatever the transport.

EC (encoder cache): a producer puts the tensors of a media item under its mm_hash, consumers get
them. KV: a producer publishes blocks of its cache for a request, one consumer fetches them into
blocks of its own and says so.

All calls return at once; what takes time is polled from the engine's step loop. Every handle and
every published block has one owner and one end: done, failed, released or expired.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq

from protocol.refs import KVRef

Tensors = dict[str, torch.Tensor]
EC_TENSOR = "ec_cache"


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


class ECConnector(ABC):
    """Embeddings by mm_hash. An entry's main tensor is `ec_cache` [tokens, hidden]."""

    @abstractmethod
    def put(self, mm_hash: str, tensors: Tensors) -> dict[str, Any] | None:
        """Store an entry; returns what consumers need to find it (for `ec_transfer_params`), None
        while entries that must stay leave no room: try again later.

        May evict entries that nobody was told of or has come for, least recently used first.
        Raises `TransferError` if the entry can never be stored.
        """

    @abstractmethod
    def find(self, mm_hash: str) -> dict[str, Any] | None:
        """What `put` returned for an entry that is still held, else None. Counts as a use, and as
        telling somebody."""

    @abstractmethod
    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        """Ask for an entry; `params` is its `ec_transfer_params` value, None to look it up."""

    def decline(self, mm_hash: str, params: dict[str, Any] | None) -> None:  # noqa: B027
        """Somebody who was told of an entry does not need it."""

    def endpoint(self) -> dict[str, Any]:
        """The part of `put`'s answer that is known before there is any entry; empty if entries are
        found without it."""
        return {}

    def poll(self) -> None:  # noqa: B027 — most transports have nothing to do
        """Advance background work; called once per engine step."""

    @property
    def active(self) -> bool:
        """Whether `poll` must be called soon, as bytes may be moving."""
        return False

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Readable when `poll` has something to do."""
        return []

    @abstractmethod
    def clear(self) -> None:
        """Drop every entry this instance put."""

    @abstractmethod
    def close(self) -> None:
        """Release everything this instance owns; idempotent."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the books, [] if nothing."""


@dataclass(frozen=True)
class KVArrival:
    """What came with a request's KV: how many prompt tokens have it, what to add to a later token's
    index for its rotary position, and the tokens the producer has put out, by choice."""

    num_tokens: int
    rope_delta: int
    outputs: dict[int, list[int]]


class KVLoad(ABC):
    """A fetch of KV blocks on its way into this engine's cache."""

    @abstractmethod
    def poll(self) -> KVArrival | None:
        """What arrived, once every block is here and the producer has confirmed that it still held
        them; None until then. Raises `TransferError` on failure; cancel it then."""

    @abstractmethod
    def cancel(self) -> None:
        """Give up and tell the producer; idempotent."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """True once nothing will write to the destination blocks any more."""


class KVConnector(ABC):
    """KV blocks between the pools of two engines.

    Producer: `open` an offer, `extend` it as blocks are computed, `end` it; or `withdraw` it.
    Consumer: `fetch` an offer that a `KVRef` names, or `decline` it.
    """

    shares: bool = True
    """Whether other engines can fetch from here and be fetched from."""

    def endpoint(self) -> dict[str, Any]:
        """What a proxy must know to point a consumer at this producer before it has computed
        anything; empty if nobody can fetch from here."""
        return {}

    @abstractmethod
    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The memory of this engine's KV pool, [num_blocks, elements], where peers can reach it."""

    @abstractmethod
    def open(self, request_id: str) -> None:
        """Begin to offer a request's KV, which is being computed."""

    @abstractmethod
    def extend(self, request_id: str, blocks: Sequence[int]) -> None:
        """These blocks, from the start of the request's table, are complete."""

    @abstractmethod
    def end(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        """No more blocks come. They are held until the consumer has them, gives them up, or lets
        the lease lapse."""

    @abstractmethod
    def withdraw(self, request_id: str, reason: str) -> None:
        """End an offer from the producer's own side; idempotent. `poll` then returns it."""

    @abstractmethod
    def fetch(self, ref: KVRef, first: int, blocks: Sequence[int]) -> KVLoad:
        """Fill `blocks` of ours, which stand at first, first + 1, … in the request's table."""

    @abstractmethod
    def keep(self, refs: Sequence[KVRef]) -> None:
        """Offers that wait to be fetched here: their leases are renewed."""

    @abstractmethod
    def decline(self, ref: KVRef) -> None:
        """Tell the producer that its blocks will not be fetched."""

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Readable when `poll` has something to do."""
        return []

    @abstractmethod
    def poll(self) -> list[str]:
        """Serve peers; returns request ids whose offered blocks may be reused from here on."""

    @abstractmethod
    def close(self) -> None:
        """Release everything this instance owns; idempotent."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the books at idle, [] if nothing."""
