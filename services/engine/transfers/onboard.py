"""One prompt's KV blocks on their way up, and the wait of a request for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from connectors.tiers.base import Copied, TierCopy
from services.engine.scheduling.request import Request


@dataclass(eq=False)
class Share:
    """What one tier gives: `numbers` are places in `Onboard.blocks`."""

    level: int
    numbers: list[int]
    slots: list[int]
    copy: TierCopy
    done: Copied | None = None


@dataclass(eq=False)
class Onboard:
    """Blocks first, first + 1, … of a prompt. Its `blocks`, and the `matched` ones before them that
    are in the pool, are owned until every copy has ended. `valid`: the keys still name them."""

    request: Request
    first: int
    keys: list[bytes]
    matched: list[int]
    blocks: list[int]
    shares: list[Share] = field(default_factory=list)
    valid: bool = True


@dataclass(frozen=True)
class Wait:
    """For an onboard, or (None) for its turn to begin one of so many `blocks`."""

    onboard: Onboard | None
    blocks: int
    until: float
