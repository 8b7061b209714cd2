"""What a policy is."""

from __future__ import annotations

import abc
import math
import random
from typing import ClassVar

import numpy as np
from blake3 import blake3

from services.master.config import MasterConfig
from services.master.fleet.columns import Floats
from services.master.placement.costs import Choice, StageCosts, least


class Policy(abc.ABC):
    """Chooses a worker for each stage of a request.

    `sees_media`: it is asked only for pictures that no cache has and no encoder is at work on.
    Others are asked for every picture and left with the encoder's own cache; but if it
    `keeps_media` not for one that the prefill worker holds. `seeks_holders`: it wants to know which
    encoders hold a picture. `compares`: where some workers prefill or decode and others do both, it
    chooses among each kind, and the cheaper choice is taken; with others `splits` decides
    beforehand.
    """

    sees_media: ClassVar[bool] = False
    keeps_media: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    seeks_holders: bool = False

    def __init__(self, config: MasterConfig, rng: random.Random) -> None:
        self.config = config
        self.rng = rng

    @abc.abstractmethod
    def scores(self, costs: StageCosts) -> Floats:
        """What each worker would cost, [rows]; `costs.penalty` need not be in it."""

    def price(self, choice: Choice) -> float:
        """What a choice costs, beside choices of other stages and pools."""
        return float(self.scores(choice.costs)[choice.row])

    def pick(self, costs: StageCosts) -> int:
        """The row to use. At least one row has no penalty."""
        return self.least(self.scores(costs) + costs.penalty, costs)

    def splits(self, parted: int, combined: int) -> bool:
        """Whether a request is split, of `parted` workers that prefill or decode and `combined`
        ones that do both: by lot, so that each worker gets as much work."""
        return self.rng.random() * (parted + combined) < parted

    def computes_there(self, decode: Choice) -> bool:
        """Whether the decode worker chosen computes what it lacks of the prompt, of a policy that
        does not compare."""
        return False

    def least(
        self, scores: Floats, costs: StageCosts, slack: float = 0.0, ratio: float = 0.0
    ) -> int:
        """A row within `slack`, or `ratio` of it, of the least score, which is infinite where there
        is a penalty: by session if there is one, else by lot.

        Several masters, or one with stale reports, would otherwise all send to the same worker.
        """
        lowest = least(scores)
        priced = math.isfinite(lowest)
        slack = max(slack, ratio * lowest) if ratio else slack
        # All prices may be infinite, of an absurd rate: any row without a penalty then does.
        near = (scores <= lowest + slack if priced else costs.penalty == 0.0).nonzero()[0]
        if len(near) == 1:
            return int(near[0])
        if costs.session:
            return max(
                map(int, near), key=lambda row: _affinity(costs.session, costs.pool.ids[row])
            )
        return int(near[int(self.rng.random() * len(near))])

    def steady(self, costs: StageCosts) -> int:
        """The same row for the same content, as long as it has no penalty: rendezvous hashing."""
        able = (costs.penalty == 0.0).nonzero()[0]
        ids = costs.pool.ids
        return max(map(int, able), key=lambda row: _affinity(costs.content, ids[row]))

    def draw(self, weights: Floats) -> int:
        """A row at random, in proportion to its weight; at least one is positive. [rows]"""
        total = np.cumsum(weights)
        # Rounding may draw a row behind the last one that has a weight.
        row = int(np.searchsorted(total, self.rng.random() * float(total[-1]), side="right"))
        return row if row < len(weights) and weights[row] > 0.0 else int(weights.argmax())


def _affinity(name: str, instance_id: str) -> bytes:
    """Rendezvous hashing: the same worker for a name as long as it is among the choices."""
    return blake3(f"{name}\0{instance_id}".encode()).digest()
