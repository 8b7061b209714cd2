"""UCX (ucxx): peers on other hosts, over any network that UCX finds.

UCX's Python interface has no remote read. A reader names the ranges it wants in a small message and
posts a receive for each; the owner answers from its `poll` with tagged sends. One connection serves
both directions between two processes, and ends for both.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from connectors.transports.background_poller import BackgroundPoller
from connectors.transports.base import Range, Transfer, Transport, check_ranges, zeros
from connectors.transports.ucx_owner import Region, UcxOwner
from connectors.transports.ucx_reader import UcxReader
from connectors.transports.ucx_wire import (
    DATA,
    REFUSAL,
    REQUEST,
    UcxDescription,
    open_description,
    seal,
    untag,
)
from connectors.transports.ucx_worker import Message, UcxWorker
from protocol.errors import ConfigError, TransferError


class UcxTransport(Transport):
    """`host` is the address to listen on, at a free port. A read that is not complete after
    `read_timeout_s` fails; if its peer hangs in the middle of a message, it is settled once the
    peer goes on, dies or is disconnected. UCX registers memory when it first uses it and keeps it
    registered."""

    name = "ucx"

    def __init__(self, host: str = "127.0.0.1", *, read_timeout_s: float = 20.0) -> None:
        self._running: UcxWorker | None = UcxWorker(host)
        self._regions: dict[str, Region] = {}
        self._peers: dict[tuple[str, str], tuple[bytes, UcxDescription]] = {}
        self._owner = UcxOwner(self._running, self._regions, read_timeout_s)
        self._reader = UcxReader(self._running, read_timeout_s)
        self._device = torch.cuda.current_device() if self._running.cuda else None
        self._background = BackgroundPoller(self._poll_aside, self._running.rest)
        # UCX must not be let go of by the interpreter's own end.
        atexit.register(self.close)

    @property
    def _worker(self) -> UcxWorker:
        if self._running is None:
            raise TransferError("ucx: the transport is closed")
        return self._running

    @property
    def refused(self) -> int:
        """Messages of peers that made no sense."""
        return self._owner.refused

    @property
    def late(self) -> int:
        """Messages thrown away because their read had ended."""
        return self._reader.late

    def takes(self, device: str) -> bool:
        kind = torch.device(device).type
        return kind == "cpu" or (kind == "cuda" and self._worker.cuda)

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if not self.takes(device):
            raise ConfigError(
                f"ucx: memory on {device} cannot be sent: set kv_buffer_device to cpu"
            )
        if region in self._regions or nbytes <= 0:
            raise ConfigError(f"ucx: region '{region}' exists already or has no bytes ({nbytes})")
        try:
            memory = zeros(nbytes, device)
        except (MemoryError, RuntimeError) as error:
            raise ConfigError(f"ucx: cannot allocate {nbytes} bytes on {device}: {error}") from None
        view = memory if memory.is_cuda else memory.numpy()
        self._regions[region] = Region(nbytes, not memory.is_cuda, view)
        return memory

    def describe(self, region: str) -> bytes:
        known = self._regions[region]
        return seal(UcxDescription(self._worker.address, region, known.nbytes, known.host))

    def connect(self, peer: str, region: str, description: bytes) -> None:
        wanted = open_description(description)
        if wanted.region != region or wanted.nbytes <= 0:
            raise TransferError(
                f"ucx: the description is of '{wanted.region[:80]}', not of '{region}'"
            )
        # Here, so that a peer which UCX finds no way to fails its handshake, not its first read.
        self._worker.link(wanted.address)
        known = self._peers.get((peer, region))
        self._peers[peer, region] = description, wanted
        if known is not None:
            self._release(known[1].address, f"instance {peer} has restarted")

    def _release(self, address: bytes, reason: str) -> None:
        """End the connection to a worker where no peer lives any more."""
        # Both regions of a process have the address of its one worker.
        if all(wanted.address != address for _, wanted in self._peers.values()):
            self._reader.fail(lambda read: read.link.address == address, reason)
            self._worker.cut(address)

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        local, known = self._regions.get(region), self._peers.get((peer, region))
        if local is None or known is None:
            raise TransferError(f"ucx: region '{region}' of instance {peer} is not connected")
        wanted = known[1]
        problem = check_ranges(ranges, wanted.nbytes, local.nbytes)
        if problem is not None:
            raise TransferError(f"ucx: {problem}")
        # Made anew if it has broken since.
        link = self._worker.link(wanted.address)
        return self._reader.start(peer, link, region, local, ranges, wanted.host)

    def disconnect(self, peer: str) -> None:
        if self._running is None:
            return
        self._reader.fail(lambda read: read.peer == peer, f"instance {peer} was disconnected")
        for key in [key for key in self._peers if key[0] == peer]:
            _, wanted = self._peers.pop(key)
            self._release(wanted.address, f"instance {peer} was disconnected")

    def poll(self) -> None:
        worker, now = self._worker, time.monotonic()
        worker.progress()
        worker.complete()
        for message in worker.messages():
            self._accept(message, now)
        # What fitted one segment is here at once.
        worker.complete()
        self._owner.pump(now)
        self._reader.tidy(now)

    def _poll_aside(self) -> None:
        """In a thread of its own, which has a current GPU of its own."""
        if self._device is not None:
            torch.cuda.set_device(self._device)
        self.poll()

    def meanwhile(self) -> AbstractContextManager[None]:
        """Without a connection no peer waits for anything."""
        return self._background.running() if self._worker.linked else nullcontext()

    @property
    def descriptors(self) -> Sequence[int]:
        return () if self._running is None else (self._running.descriptor,)

    def arm(self) -> bool:
        return self._worker.arm()

    def _accept(self, message: Message, now: float) -> None:
        kind, transfer, index = untag(message.tag)
        if kind == DATA:
            self._reader.receive(message, transfer, index)
        elif kind == REQUEST:
            self._owner.receive(message, now)
        elif kind == REFUSAL:
            self._reader.refused(message, transfer)
        else:
            self._worker.discard(message)
            self._owner.refuse(f"its tag is {message.tag:#x}")

    def close(self) -> None:
        if self._running is None:
            return
        atexit.unregister(self.close)
        self._background.close()
        self._reader.fail(lambda _: True, "the transport was closed")
        self._running.close()
        self._running = None
        self._reader.close()
        self._peers.clear()
        self._regions.clear()

    def check_integrity(self) -> list[str]:
        if self._running is None:
            return []
        wrong = [
            f"ucx: a read from instance {peer} is still running" for peer in self._reader.unsettled
        ]
        if self._owner.waiting:
            wrong.append(f"ucx: {self._owner.waiting} reads of peers still wait")
        if self._running.busy:
            wrong.append(f"ucx: {self._running.busy} sends and receives are still running")
        return wrong
