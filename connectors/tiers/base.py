"""What the scheduling core asks of a store for KV blocks below the pool.

Calls return at once, the copying is done by others. Which block lies where is the core's to know: a
store has `capacity` slots, and is told the slot and the content key of each block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

TierName = Literal["host", "disk"]


@dataclass(frozen=True)
class Copied:
    """`whole`: for each block, in the order of the call, whether all of it was copied and is what
    was kept under its key. `seconds` from the start of the first copy, which may have waited for
    those of earlier calls, to the end of the last."""

    whole: Sequence[bool]
    seconds: float


class TierCopy(Protocol):
    """Blocks on their way into a store, or back into the pool."""

    def poll(self) -> Copied | None:
        """None until nothing reads or writes the blocks of this copy any more."""


class TierStore(Protocol):
    """Blocks of one tier. A store above another one is where that one copies from."""

    @property
    def name(self) -> TierName: ...

    @property
    def medium(self) -> str:
        """What cache events call the tier."""

    @property
    def capacity(self) -> int:
        """Blocks that fit."""

    def kept(self) -> list[bytes]:
        """Keys that an earlier process has left, the least recently used first: slots 0, 1, …"""

    def save(self, rows: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> TierCopy:
        """Copy from the tier above, where the blocks lie in `rows`, into `slots`."""

    def load(self, keys: Sequence[bytes], slots: Sequence[int], blocks: Sequence[int]) -> TierCopy:
        """Copy back into `blocks` of the pool, which nothing else writes to until it has ended."""

    def remove(self, keys: Sequence[bytes]) -> None:
        """These are not kept any more."""

    def close(self) -> None:
        """End what is under way and release everything; idempotent."""
