"""KV without bytes: a connector of offers under leases and loads that take as long as copying
would, and tiers below the pool that hold nothing.

In place of a side channel there are actions, which the engine's driver carries to the peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from connectors.kv.base import Fence, KVConnector, KVLoad
from connectors.meter import Meter
from connectors.tiers.base import Copied, TierCopy, TierName
from protocol.errors import IncompatiblePeer
from protocol.refs import KVRef
from services.engine.scheduling.seams import Clock
from services.mock.kv_loads import CountedLoads
from services.mock.kv_offers import CountedOffers, kv_ref
from services.mock.settings import EngineSettings
from services.mock.timing import Timers, Timing

if TYPE_CHECKING:
    import torch


class CountedKV(KVConnector):
    """Both ends. A handle's `rope_delta`, which goes from the producer's model to the consumer's,
    has the digest of what was computed."""

    def __init__(
        self, settings: EngineSettings, offers: CountedOffers, loads: CountedLoads
    ) -> None:
        self.meter = Meter("kv", "counted")
        self.shares = settings.role != "pdfusion"
        self._settings = settings
        self._offers = offers
        self._loads = loads

    def endpoint(self) -> dict[str, Any]:
        return kv_ref(self._settings).to_params()

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        raise AssertionError("blocks are counted, not held")

    def offer(self, request_id: str) -> None:
        self._offers.open(request_id)

    def advance(self, request_id: str, blocks: Sequence[int], written: Fence | None = None) -> None:
        """Nothing: a consumer copies once all is computed."""

    def restart(self, request_id: str) -> None:
        """Nothing: no consumer has copied any of it."""

    def seal(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        return self._offers.seal(request_id, num_tokens, rope_delta, outputs)

    def release(self, request_id: str, reason: str) -> None:
        self._offers.withdraw(request_id)

    def check(self, ref: KVRef) -> None:
        ours = self._settings.compatibility
        if ref.compatibility != ours:
            raise IncompatiblePeer(f"the KV is '{ref.compatibility}', this worker takes '{ours}'")

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        return self._loads.fetch(ref)

    def poll(self) -> list[str]:
        return self._offers.poll()

    def close(self) -> None:
        """Nothing is held."""

    def check_integrity(self) -> list[str]:
        return []


class _TimedCopy(TierCopy):
    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self.done: Copied | None = None

    def end(self, seconds: float) -> None:
        self.done = Copied([True] * self._blocks, seconds)

    def poll(self) -> Copied | None:
        return self.done


class TimedStore:
    """One copy at a time, each of so many seconds a block."""

    def __init__(
        self, name: TierName, capacity: int, block_s: float, clock: Clock, timers: Timers
    ) -> None:
        self.name: TierName = name
        self.medium = {"host": "CPU", "disk": "DISK"}[name]
        self.capacity = capacity
        self._block_s = block_s
        self._clock = clock
        self._timers = timers
        self._busy_until = 0.0

    def kept(self) -> list[bytes]:
        """Nothing outlives a mock worker."""
        return []

    def save(self, rows: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> TierCopy:
        return self._copy(len(rows))

    def load(self, keys: Sequence[bytes], slots: Sequence[int], blocks: Sequence[int]) -> TierCopy:
        return self._copy(len(blocks))

    def _copy(self, blocks: int) -> TierCopy:
        now = self._clock()
        self._busy_until = max(now, self._busy_until) + blocks * self._block_s
        copy = _TimedCopy(blocks)
        self._timers.at(self._busy_until, lambda: copy.end(blocks * self._block_s))
        return copy

    def remove(self, keys: Sequence[bytes]) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def timed_stores(
    settings: EngineSettings, timing: Timing, clock: Clock, timers: Timers
) -> list[TimedStore]:
    """The tiers below the pool that a worker has, the uppermost first."""
    sizes: dict[TierName, int] = {"host": settings.host_blocks, "disk": settings.disk_blocks}
    return [
        TimedStore(name, blocks, timing.tier_s(name), clock, timers)
        for name, blocks in sizes.items()
        if blocks
    ]
