"""Regions on a device whose memory a transport cannot hand to peers: copied through host memory.

A region has a mirror of the same size on the host, which is what peers know of it, so that offsets
mean the same to those who stage and those who do not. Pieces are copied out when they are offered
and in when they have been read; otherwise the mirror needs no memory, if the transport can give it
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import torch

from connectors.transports.base import Range, Transfer, Transport, check_ranges, zeros
from connectors.transports.composite_transfer import CompositeTransfer, Copy
from connectors.transports.staged_region import Piece, Released, StagedRegion
from protocol.errors import ConfigError, TransferError


class StagedTransport(Transport):
    """`inner` moves bytes between the memories of hosts. `everything`: regions that it could take
    are staged as well; sparse ones, which their owners fill without a word, never are."""

    def __init__(self, inner: Transport, *, everything: bool = False) -> None:
        self.name = inner.name
        self.maps = inner.maps
        self._inner = inner
        self._everything = everything
        self._regions: dict[str, StagedRegion] = {}
        self._under_way: list[CompositeTransfer] = []
        # One thread: pieces are copied in the order in which that was asked for.
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="staging")

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if sparse or (self._inner.takes(device) and not self._everything):
            return self._inner.allocate(region, nbytes, device, sparse=sparse, granule=granule)
        if nbytes <= 0 or torch.device(device).type == "meta":
            raise ConfigError(
                f"{self.name}: region '{region}' of {nbytes} bytes on {device} cannot exist"
            )
        try:
            memory = zeros(nbytes, device)
        except (MemoryError, RuntimeError) as error:
            raise ConfigError(f"cannot allocate {nbytes} bytes on {device}: {error}") from None
        mirror = self._inner.allocate(region, nbytes, "cpu", sparse=True, granule=granule)
        granule = granule or nbytes
        count = -(-nbytes // granule)
        self._regions[region] = StagedRegion(
            memory, mirror, granule, np.zeros(count, np.bool_), np.zeros(count, np.int32)
        )
        return memory

    def commit(self, region: str, offset: int, size: int) -> None:
        if region not in self._regions:
            self._inner.commit(region, offset, size)

    def offer(self, region: str, ranges: Sequence[Piece]) -> Transfer | None:
        ours = self._regions.get(region)
        if ours is None:
            return self._inner.offer(region, ranges)
        # Before the copy: a discard that comes due meanwhile must not take its memory.
        ours.mark(ranges, True)

        # Within the transfer: a commit that finds no memory fails the transfer, not this call.
        def copy_out() -> Copy:
            self._commit(region, ranges)
            return self._copy(ours.memory, ours.mirror, ranges)

        return self._begin(
            CompositeTransfer(None, [copy_out, lambda: self._inner.offer(region, ranges)])
        )

    def _commit(self, region: str, pieces: Sequence[Piece]) -> None:
        for offset, size in pieces:
            self._inner.commit(region, offset, size)

    def release(self, region: str, ranges: Sequence[Piece]) -> None:
        self._inner.release(region, ranges)
        ours = self._regions.get(region)
        if ours is None:
            return
        ours.mark(ranges, False)
        ours.count_release(ranges, 1)

        def over() -> None:
            ours.count_release(ranges, -1)
            self._discard(region, ranges)

        # Not before the copies that were asked for earlier, and may be given up, are over.
        self._begin(CompositeTransfer(Copy(self._copier.submit(lambda: None)), over=over))

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        ours = self._regions.get(region)
        if ours is None:
            return self._inner.read(peer, region, ranges)
        pieces = [(r.local, r.size) for r in ranges]
        # `inner` looks at both sides when it reads; ours is committed before that.
        inside = [Range(0, r.local, r.size) for r in ranges]
        problem = check_ranges(inside, ours.mirror.numel(), ours.mirror.numel())
        if problem is not None:
            raise TransferError(f"{self.name}: {problem}")

        def begin() -> Transfer:
            self._commit(region, pieces)
            return self._inner.read(peer, region, ranges)

        # The pieces may have been offered a moment ago: a copy out that still runs would write over
        # what is read, and the discard that follows it would take that away.
        transfer = self._begin(
            CompositeTransfer(
                Released(ours, pieces),
                [begin, lambda: self._copy(ours.mirror, ours.memory, pieces)],
                over=lambda: self._discard(region, pieces),
            )
        )
        transfer.poll()  # raises what `inner` says against the peer or the ranges
        return transfer

    def _begin(self, transfer: CompositeTransfer) -> CompositeTransfer:
        self._under_way.append(transfer)
        transfer.advance()
        return transfer

    def _discard(self, region: str, pieces: Sequence[Piece]) -> None:
        """The mirror needs no memory for these, unless they have been offered meanwhile."""
        for offset, size in self._regions[region].unneeded(pieces):
            self._inner.discard(region, offset, size)

    def _copy(self, source: torch.Tensor, target: torch.Tensor, pieces: Sequence[Piece]) -> Copy:
        """To the same offsets, after all that the device has been asked to do before."""
        device = source.device if source.is_cuda else target.device
        if device.type != "cuda":
            return Copy(self._copier.submit(_move, source, target, pieces))
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(device))
        return Copy(self._copier.submit(_move_on_gpu, ready, device, source, target, pieces))

    def poll(self) -> None:
        self._inner.poll()
        self._advance()

    def _advance(self) -> None:
        for transfer in self._under_way:
            transfer.advance()
        self._under_way = [transfer for transfer in self._under_way if not transfer.settled]

    def view(self, peer: str, region: str, offset: int, size: int) -> torch.Tensor:
        return self._inner.view(peer, region, offset, size)

    def describe(self, region: str) -> bytes:
        return self._inner.describe(region)

    def connect(self, peer: str, region: str, description: bytes) -> Transfer | None:
        return self._inner.connect(peer, region, description)

    def disconnect(self, peer: str) -> None:
        self._inner.disconnect(peer)

    def meanwhile(self) -> AbstractContextManager[None]:
        return self._inner.meanwhile()

    @property
    def descriptors(self) -> Sequence[int]:
        return self._inner.descriptors

    def arm(self) -> bool:
        return self._inner.arm()

    @property
    def refused(self) -> int:
        return self._inner.refused

    def close(self) -> None:
        for transfer in self._under_way:
            transfer.cancel()
        self._copier.shutdown()
        self._inner.close()
        self._under_way.clear()

    def check_integrity(self) -> list[str]:
        self._advance()  # what has ended meanwhile is not lost
        left = (
            [f"staging: {len(self._under_way)} copies are still running"] if self._under_way else []
        )
        return left + self._inner.check_integrity()


def _move(source: torch.Tensor, target: torch.Tensor, pieces: Sequence[Piece]) -> None:
    for offset, size in pieces:
        target[offset : offset + size].copy_(source[offset : offset + size], non_blocking=True)


def _move_on_gpu(
    ready: torch.cuda.Event,
    device: torch.device,
    source: torch.Tensor,
    target: torch.Tensor,
    pieces: Sequence[Piece],
) -> None:
    """On a stream of its own, which computing does not wait for; ends when all is there."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        stream.wait_event(ready)
        _move(source, target, pieces)
    stream.synchronize()
