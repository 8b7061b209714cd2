"""Where embeddings arrive, and where they stay while they are in use: memory that is used anew."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from connectors.base import Tensors
from connectors.ec.range_allocator import RangeAllocator
from connectors.ec.tensors import span, views
from connectors.messages import ECTensor


@dataclass
class Landing:
    """Where entries arrive that find no room in the `BufferPool`, until they are copied: a part of
    the region (uint8[nbytes]) that begins at `base`."""

    region: torch.Tensor
    base: int
    space: RangeAllocator

    def take(self, size: int) -> int | None:
        """The offset, in the region, of `size` bytes; None if there is no room."""
        offset = self.space.take(size)
        return None if offset is None else self.base + offset

    def give(self, offset: int) -> None:
        self.space.give(offset - self.base)


class BufferPool:
    """Pieces of `memory` (host, uint8[nbytes], `base` bytes into the region that transports know it
    by). A piece is free again once no tensor in it is referenced: fresh memory for every entry
    would cost more than filling it."""

    def __init__(self, memory: torch.Tensor, base: int = 0) -> None:
        self._memory = memory.numpy()
        self._base = base
        self._space = RangeAllocator(memory.numel())
        # Finalizers run wherever garbage is collected, be it within `take` or in another thread.
        self._returned: deque[int] = deque()

    def _take_back(self) -> None:
        while self._returned:
            self._space.give(self._returned.popleft())

    def take(self, size: int) -> int | None:
        """The offset, in the region, of `size` bytes; None if there is no room."""
        self._take_back()
        offset = self._space.take(size)
        return None if offset is None else self._base + offset

    def give(self, offset: int) -> None:
        """Take back a piece that was not lent."""
        self._space.give(offset - self._base)

    def fill(self, offset: int, data: torch.Tensor) -> None:
        """Copy bytes to an offset that was taken."""
        at = offset - self._base
        self._memory[at : at + data.numel()] = data.numpy()

    def lend(self, offset: int, tensors: Sequence[ECTensor]) -> Tensors:
        """The tensors of an entry that lies at an offset that was taken, which comes back when they
        are gone."""
        start, end = span(tensors)
        at = offset - self._base
        # The tensors' storage holds this array, and nothing else does.
        held = self._memory[at : at + end - start]
        weakref.finalize(held, self._returned.append, at).atexit = False
        return views(torch.from_numpy(held), tensors)

    @property
    def used(self) -> int:
        """Bytes of pieces that are lent, or were taken."""
        self._take_back()
        return self._space.used

    def check_integrity(self) -> list[str]:
        self._take_back()
        return self._space.check_integrity()
