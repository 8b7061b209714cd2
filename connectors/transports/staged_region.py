"""A region that is copied through a mirror on the host, and what the mirror is needed for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from connectors.transports.base import Transfer

Piece = tuple[int, int]
"""Offset and size."""


@dataclass
class StagedRegion:
    """`offered` [granules]: which of them peers may read. `leaving` [granules]: how many releases
    of each are under way: until they are over, copies into the mirror may be, too."""

    memory: torch.Tensor
    mirror: torch.Tensor
    granule: int
    offered: npt.NDArray[np.bool_]
    leaving: npt.NDArray[np.int32]

    def _granules(self, offset: int, size: int) -> slice:
        return slice(offset // self.granule, -(-(offset + size) // self.granule))

    def mark(self, pieces: Sequence[Piece], offered: bool) -> None:
        for piece in pieces:
            self.offered[self._granules(*piece)] = offered

    def leave(self, pieces: Sequence[Piece], change: int) -> None:
        """A release of these begins (1) or is over (-1)."""
        for piece in pieces:
            self.leaving[self._granules(*piece)] += change

    def vacated(self, pieces: Sequence[Piece]) -> bool:
        """Whether every release of these is over."""
        return not any(self.leaving[self._granules(*piece)].any() for piece in pieces)

    def unneeded(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What of these no peer may read, granule by granule."""
        found: list[Piece] = []
        for offset, size in pieces:
            for at in range(offset - offset % self.granule, offset + size, self.granule):
                start, end = max(at, offset), min(at + self.granule, offset + size)
                if not self.offered[at // self.granule]:
                    found.append((start, end - start))
        return found


class Vacated(Transfer):
    """Waits until what was offered before of these pieces has left the mirror."""

    def __init__(self, region: StagedRegion, pieces: Sequence[Piece]) -> None:
        self._region = region
        self._pieces = pieces

    def poll(self) -> bool:
        return self._region.vacated(self._pieces)

    def cancel(self) -> None:
        """Releases end by themselves."""

    @property
    def settled(self) -> bool:
        return True
