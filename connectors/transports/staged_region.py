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
    """`offered` [granules]: which of them peers may read. `releasing` [granules]: how many
    releases of each are in progress; until they end, a copy may still write to the mirror."""

    memory: torch.Tensor
    mirror: torch.Tensor
    granule: int
    offered: npt.NDArray[np.bool_]
    releasing: npt.NDArray[np.int32]

    def _granules(self, offset: int, size: int) -> slice:
        return slice(offset // self.granule, -(-(offset + size) // self.granule))

    def mark(self, pieces: Sequence[Piece], offered: bool) -> None:
        for piece in pieces:
            self.offered[self._granules(*piece)] = offered

    def count_release(self, pieces: Sequence[Piece], change: int) -> None:
        """Count a release of these pieces that starts (`change` 1) or ends (-1)."""
        for piece in pieces:
            self.releasing[self._granules(*piece)] += change

    def released(self, pieces: Sequence[Piece]) -> bool:
        """Whether no release of these pieces is in progress."""
        return not any(self.releasing[self._granules(*piece)].any() for piece in pieces)

    def unneeded(self, pieces: Sequence[Piece]) -> list[Piece]:
        """What of these no peer may read, granule by granule."""
        found: list[Piece] = []
        for offset, size in pieces:
            for at in range(offset - offset % self.granule, offset + size, self.granule):
                start, end = max(at, offset), min(at + self.granule, offset + size)
                if not self.offered[at // self.granule]:
                    found.append((start, end - start))
        return found


class Released(Transfer):
    """Waits until no release of these pieces is in progress."""

    def __init__(self, region: StagedRegion, pieces: Sequence[Piece]) -> None:
        self._region = region
        self._pieces = pieces

    def poll(self) -> bool:
        return self._region.released(self._pieces)

    def cancel(self) -> None:
        """Releases end by themselves."""

    @property
    def settled(self) -> bool:
        return True
