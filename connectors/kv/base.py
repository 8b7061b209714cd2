"""What the engine asks of a KV connector over any transport: a producer offers blocks of
its cache for a request, one consumer fetches them into blocks of its own and confirms.

Calls return at once, handles have one owner and one end, as in `connectors.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from connectors.meter import Meter, TransferStats
from protocol.refs import KVRef

if TYPE_CHECKING:  # engines without a model have connectors too
    import torch

REGION = "kv"
"""The name of a pool's memory, on any transport."""


class Fence(Protocol):
    """A point in the work that a device has been asked to do. Kernels run after the call that
    launched them, on a GPU; what reads or writes memory without its stream must wait for them."""

    def passed(self) -> bool:
        """Whether all work before it is done; never waits."""


@dataclass(frozen=True)
class KVArrival:
    """What came with a request's KV: how many prompt tokens have it, what to add to a later token's
    index for its rotary position, and the tokens the producer has put out, by choice."""

    num_tokens: int
    rope_delta: int
    outputs: dict[int, list[int]]


class KVLoad(ABC):
    """A request's KV on its way here: asked for at once, copied once it has a place."""

    @property
    @abstractmethod
    def fed(self) -> bool:
        """Whether the producer has told of anything that can be copied."""

    @abstractmethod
    def place(self, first: int, blocks: Sequence[int]) -> None:
        """Copy into `blocks` of ours, which stand at first, first + 1, … in the request's table."""

    @abstractmethod
    def unplace(self) -> None:
        """Take the place away again; the blocks may be written to until `settled`."""

    @abstractmethod
    def poll(self) -> KVArrival | None:
        """What arrived, once every block is here and the producer has confirmed that it still held
        them; None until then. Raises `TransferError` on failure; cancel it then."""

    @abstractmethod
    def cancel(self) -> None:
        """Give up; idempotent. The producer is told once nothing reads its blocks any more."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """True once nothing will write to the destination blocks any more."""


class KVConnector(ABC):
    """KV blocks between the pools of two engines.

    Producer: `offer` a request's KV, `advance` the offer as blocks are computed, `seal` it; or
    `release` it before its consumer does.
    Consumer: `fetch` an offer that a `KVRef` names; the load confirms it.
    """

    meter: Meter
    shares: bool = True
    """Whether other engines can fetch from here and be fetched from."""

    def endpoint(self) -> dict[str, Any]:
        """What a proxy must know to point a consumer at this producer before it has computed
        anything; empty if no consumer can fetch from here."""
        return {}

    @abstractmethod
    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """The memory of this engine's KV pool, [num_blocks, elements], where peers can reach it."""

    @abstractmethod
    def offer(self, request_id: str) -> None:
        """Begin to offer a request's KV, which is being computed."""

    @abstractmethod
    def advance(self, request_id: str, blocks: Sequence[int], written: Fence | None = None) -> None:
        """These blocks, from the start of the request's table, are complete once `written` has
        passed (None: they are). No peer hears of them before."""

    @abstractmethod
    def restart(self, request_id: str) -> None:
        """Nothing of what was offered holds any more; it is computed again."""

    @abstractmethod
    def seal(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        """No more blocks come. They are held until the consumer has them, gives them up, or lets
        the lease lapse."""

    @abstractmethod
    def release(self, request_id: str, reason: str) -> None:
        """End an offer from the producer's own side; idempotent. Its blocks may be reused at once:
        who reads them now finds out when it asks whether they were held."""

    def check(self, ref: KVRef) -> None:  # noqa: B027
        """`IncompatiblePeer` if what an offer says of itself does not fit this engine."""

    @abstractmethod
    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        """Ask for the first `num_blocks` blocks of a request's table. The offer's lease is renewed
        until the load has ended. `TransferError` if this engine is fetching that offer already."""

    def stats(self) -> TransferStats:
        return self.meter.snapshot()

    @abstractmethod
    def poll(self) -> list[str]:
        """Serve peers; returns request ids whose offers have ended by themselves: their blocks may
        be reused from here on. An offer that still grew, and cannot, is among them."""

    @abstractmethod
    def close(self) -> None:
        """Release everything this instance owns; idempotent."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """What is wrong with the books at idle, [] if nothing."""
