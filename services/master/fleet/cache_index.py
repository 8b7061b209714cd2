"""Who holds what of one model, and who will soon."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.master.fleet.pool import Charge
from services.master.index.expected_prefixes import ExpectedPrefixes
from services.master.index.prefix_index import HolderIndex


@dataclass(slots=True)
class PendingEncode:
    """A picture that an encoder has been asked for. Joined until `expires_at` (ms). `charge`: what
    it was counted for, by which its end is known."""

    slot: int
    ready_at: float
    expires_at: float
    charge: Charge | None = None


@dataclass
class CacheIndex:
    """Who holds what, and will soon: `blocks` by short key, `media` by hash, both by slot. `host`
    and `disk`: blocks below workers' pools, which take time to come back."""

    blocks: HolderIndex[int]
    media: HolderIndex[str]
    host: HolderIndex[int]
    disk: HolderIndex[int]
    # encodes under way, by media hash
    pending: dict[str, PendingEncode] = field(default_factory=dict)
    # prefixes that placed prefills will leave
    expected: ExpectedPrefixes = field(default_factory=ExpectedPrefixes)

    @property
    def refused(self) -> int:
        """Keys that found no room."""
        indices = (self.blocks, self.host, self.disk, self.media)
        return sum(index.refused for index in indices)

    def drop(self, slot: int) -> None:
        """The worker at `slot` is gone."""
        for index in (self.blocks, self.host, self.disk):
            index.drop(slot)
        self.media.drop(slot)
        self.expected.drop(slot)
        for name in [n for n, p in self.pending.items() if p.slot == slot]:
            del self.pending[name]

    def expire(self, now_ms: float) -> None:
        for name in [n for n, p in self.pending.items() if p.expires_at <= now_ms]:
            del self.pending[name]
