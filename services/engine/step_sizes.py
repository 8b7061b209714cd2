"""How much the steps of an engine have done so far: a step that does more, or something else, may
take longer than any before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

_SLACK = 1.25  # contexts grow by a token a step


class StepSizes:
    """The largest amount of each kind of work that a step has ended with. The engine's thread
    writes, another one reads `new`."""

    def __init__(self) -> None:
        self._largest: dict[Hashable, int] = {}
        self._doing: dict[Hashable, int] = {}
        self.new = False
        """Whether the step under way does what no step has done yet: work of another kind, or a
        quarter more of it. Kernels may have to be compiled for that, and memory to be found."""

    def begin(self) -> None:
        self._doing, self.new = {}, False

    def does(self, amounts: Mapping[Any, int]) -> None:
        """The step under way does this too."""
        for kind, amount in amounts.items():
            self._doing[kind] = done = self._doing.get(kind, 0) + amount
            self.new |= done > _SLACK * self._largest.get(kind, 0)

    def does_else(self) -> None:
        """The step under way does what cannot be foreseen, as loading an adapter."""
        self.new = True

    def end(self) -> None:
        for kind, amount in self._doing.items():
            self._largest[kind] = max(amount, self._largest.get(kind, 0))
        self.begin()
