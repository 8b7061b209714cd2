"""KV blocks in host memory: one arena, a row for each slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from connectors.host_memory import available_bytes
from connectors.tiers.base import TierCopy, TierName
from connectors.tiers.copier import Copier
from protocol.errors import ConfigError


class HostStore:
    """Below a pool [blocks, elements] on any device. Memory of a GPU's store is pinned, and copied
    on a stream of its own, behind the steps that were launched before."""

    name: TierName = "host"
    medium = "CPU"

    def __init__(self, pool: torch.Tensor, capacity: int, flag: str) -> None:
        """`capacity` in blocks; `ConfigError` names the `flag` if there is no memory for them."""
        row_bytes = pool.shape[1] * pool.element_size()
        # Asked first: memory beyond a limit is not refused when it is allocated, but the process is
        # killed when it is used.
        if capacity * row_bytes > available_bytes():
            raise ConfigError(
                f"{flag}: {capacity * row_bytes} bytes of host memory are asked for, "
                f"{available_bytes()} are free"
            )
        self.capacity = capacity
        self._pool = pool
        self._on_gpu = pool.device.type == "cuda"
        self.memory = torch.empty(
            capacity, pool.shape[1], dtype=pool.dtype, pin_memory=self._on_gpu
        )
        self._stream = _stream(pool.device) if self._on_gpu else None
        self._copier = Copier("kv-host")

    def kept(self) -> list[bytes]:
        return []

    def save(self, rows: Sequence[int], keys: Sequence[bytes], slots: Sequence[int]) -> TierCopy:
        return self._copy(self._pool, rows, self.memory, slots)

    def load(self, keys: Sequence[bytes], slots: Sequence[int], blocks: Sequence[int]) -> TierCopy:
        return self._copy(self.memory, slots, self._pool, blocks)

    def _copy(
        self, source: torch.Tensor, rows: Sequence[int], target: torch.Tensor, places: Sequence[int]
    ) -> TierCopy:
        """Copy source[rows[i]] to target[places[i]], each a row [elements]."""
        launched = None
        if self._stream is not None:
            # Here, in the engine's thread: each thread has a current stream of its own.
            launched = torch.cuda.current_stream(self._pool.device).record_event()

        def copy(numbers: range) -> list[bool]:
            if self._stream is None or launched is None:
                # Nothing orders this behind a step. A block that a step writes was evicted before,
                # and a copy of such a block does not count (`IdleBlocks.copied`).
                for n in numbers:
                    target[places[n]].copy_(source[rows[n]])
                return [True] * len(numbers)
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(launched)
                for n in numbers:
                    target[places[n]].copy_(source[rows[n]], non_blocking=True)
            self._stream.synchronize()
            return [True] * len(numbers)

        return self._copier.start(len(rows), copy)

    def remove(self, keys: Sequence[bytes]) -> None:
        """Nothing: a slot is written over."""

    def close(self) -> None:
        self._copier.close()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
