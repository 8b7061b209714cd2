"""The run of the vision model that is under way: at once, or in slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from connectors.base import Tensors
from protocol.errors import TriptychError
from services.engine.scheduling.seams import Clock, Prepared, Slices, Vision

Results: TypeAlias = "Sequence[Tensors | TriptychError]"


@dataclass
class EncodeRun:
    """`meanwhile` is entered while the model computes."""

    vision: Vision
    slices: Slices | None
    clock: Clock
    meanwhile: Callable[[], AbstractContextManager[None]]
    batch: list[Prepared] = field(default_factory=list)
    seconds: float = 0.0  # that the run has taken so far, without what came between its slices

    def begin(self, batch: list[Prepared]) -> None:
        self.batch = batch
        self.seconds = 0.0

    def go_on(self, most_s: float) -> Results | None:
        """Compute, in slices no longer than about `most_s`; None while there is more to do."""
        begun = self.clock()
        with self.meanwhile():
            if self.slices is None:
                results: Results | None = self.vision.encode(self.batch)
            else:
                results = self.slices.run(self.batch, most_s)
        self.seconds += self.clock() - begun
        return results

    def end(self) -> list[Prepared]:
        """The batch of a run that has ended or is left."""
        batch, self.batch = self.batch, []
        if self.slices is not None:
            self.slices.abandon()
        return batch

    def close(self) -> None:
        if self.slices is not None:
            self.slices.close()
