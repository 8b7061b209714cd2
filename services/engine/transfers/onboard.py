"""One prompt's KV blocks on their way up, and the wait of a request for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from connectors.tiers.base import Copied, TierCopy
from services.engine.scheduling.request import Request


@dataclass(eq=False)
class Share:
    """What one tier gives: `numbers` are places in `Onboard.blocks`."""

    level: int  # of the tier, 0 for the uppermost
    numbers: list[int]
    slots: list[int]  # where the blocks lie in its store
    copy: TierCopy  # under way until it says that it is done
    done: Copied | None = None  # what came of it


@dataclass(eq=False)
class Onboard:
    """Blocks first, first + 1, … of a prompt. `blocks` and `matched` are owned until every copy has
    ended: a block that was freed before could be written to under another request."""

    request: Request  # whose prompt it is
    first: int  # number of the first block in the prompt
    keys: list[bytes]  # of the blocks, as tiers name them
    matched: list[int]  # blocks before them that are in the pool
    blocks: list[int]  # of the pool, which the copies write to
    shares: list[Share] = field(default_factory=list)  # what each tier gives
    valid: bool = True  # the keys still name the blocks


@dataclass(frozen=True)
class Wait:
    """For an onboard, or (None) for its turn to begin one of so many `blocks`."""

    onboard: Onboard | None
    blocks: int
    until: float
