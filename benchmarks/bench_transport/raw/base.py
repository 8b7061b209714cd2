"""What a library used alone has to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ranges = Sequence[Sequence[int]]
GRANULE = 64 << 10


class Raw(ABC):
    """One side. `memory` is its region, uint8[nbytes]."""

    memory: Bytes

    @abstractmethod
    def describe(self) -> bytes:
        """What the other side must know."""

    @abstractmethod
    def connect(self, description: bytes) -> None:
        """Take the other side's description."""

    @abstractmethod
    def read(self, ranges: Ranges) -> float:
        """Seconds of one transfer."""

    def write(self, ranges: Ranges) -> float:
        """Seconds to make ranges readable; nothing has to be done where memory itself is read."""
        return 0.0

    def serve(self) -> None:  # noqa: B027 — most libraries read without the other side
        """What the other side needs of this process while it reads."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""
