"""The owner's side of reads over UCX: which pieces have been asked for, and sending them."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from connectors.transports.ucx_wire import (
    BUNDLE,
    DATA,
    MAX_REASON,
    MAX_REQUEST,
    REFUSAL,
    Piece,
    ReadRequest,
    StopRequest,
    check_request,
    open_request,
    tag,
    transfer_mask,
)
from connectors.transports.ucx_worker import Link, Message, UcxWorker
from protocol.errors import TransferError

logger = logging.getLogger(__name__)
Bytes = npt.NDArray[np.uint8]

# Per reader, so that one that has stopped reading holds up no other.
_WINDOW = 256
_BUNDLES = 8  # of them bundles, each with a buffer
_MAX_JOBS = 1024


@dataclass(frozen=True)
class Region:
    """uint8[nbytes], of the CPU if `host`; UCX and the CPU read and write slices of `view`."""

    nbytes: int
    host: bool
    view: Any


class Buffers:
    """Staging for bundles: `count` buffers, made as one piece (on large pages) when first needed.
    A caller that takes more gets buffers for one use."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free: list[Bytes] | None = None

    def take(self) -> Bytes:
        if self._free is None:
            self._free = list(np.empty((self._count, BUNDLE), np.uint8))
        return self._free.pop() if self._free else np.empty(BUNDLE, np.uint8)

    def give(self, buffer: Bytes) -> None:
        if self._free is not None and len(self._free) < self._count:
            self._free.append(buffer)


@dataclass
class _Job:
    """A transfer of which messages from `sent` on are still to be sent."""

    transfer: int
    region: Region
    messages: list[list[Piece]]
    deadline: float
    sent: int = 0


@dataclass
class _RemoteReader:
    """A peer that reads from us. Jobs take turns, message by message."""

    link: Link
    jobs: deque[_Job] = field(default_factory=deque)
    buffers: Buffers = field(default_factory=lambda: Buffers(_BUNDLES))
    under_way: int = 0
    bundles: int = 0


class UcxOwner:
    """Serves `regions`, which it shares with the transport. A job is dropped `job_s` after it was
    asked for: its reader has given up by then."""

    def __init__(self, worker: UcxWorker, regions: dict[str, Region], job_s: float) -> None:
        self.refused = 0
        self._worker = worker
        self._regions = regions
        self._job_s = job_s
        self._readers: dict[bytes, _RemoteReader] = {}

    def receive(self, message: Message, now: float) -> None:
        """Take a request."""
        if message.size > MAX_REQUEST:
            self._worker.discard(message)
            return self.refuse(f"a request has {message.size} bytes")
        data = np.empty(message.size, np.uint8)

        def then(problem: str | None) -> None:
            if problem is None:
                self._decode(data.tobytes(), now)

        return self._worker.receive(message, data, then)

    def _decode(self, data: bytes, now: float) -> None:
        try:
            request = open_request(data)
            link = self._worker.link(request.reply, request.epoch)
        except TransferError as error:
            return self.refuse(error.message)
        reader = self._reader(link)
        if isinstance(request, StopRequest):
            return self._stop(reader, request.transfer)
        try:
            reader.jobs.append(self._job(reader, request, now))
        except TransferError as error:
            self.refuse(error.message)
            self._answer(link, request.transfer, error.message)
        return None

    def _reader(self, link: Link) -> _RemoteReader:
        reader = self._readers.get(link.address)
        # Reads over the former link have failed at their reader: their jobs are dropped with it.
        if reader is None or reader.link is not link:
            reader = self._readers[link.address] = _RemoteReader(link)
        return reader

    def _job(self, reader: _RemoteReader, request: ReadRequest, now: float) -> _Job:
        region = self._regions.get(request.region)
        if region is None:
            raise TransferError(f"ucx: this instance has no region '{request.region[:80]}'")
        if len(reader.jobs) >= _MAX_JOBS:
            raise TransferError(f"ucx: the queue of {_MAX_JOBS} reads is full")
        check_request(request, region.nbytes, region.host)
        return _Job(request.transfer, region, request.messages, now + self._job_s)

    def _stop(self, reader: _RemoteReader, transfer: int) -> None:
        reader.jobs = deque(job for job in reader.jobs if job.transfer != transfer)

    def refuse(self, reason: str) -> None:
        self.refused += 1
        if self.refused == 1:
            logger.warning("ucx: a message was refused: %s", reason)

    def _answer(self, link: Link, transfer: int, reason: str) -> None:
        text = reason.encode()[:MAX_REASON]
        # A request may be refused for a number that is too large for a tag.
        self._worker.send(link, text, tag(REFUSAL, transfer & transfer_mask()), lambda _: None)

    def pump(self, now: float) -> None:
        """Send as much as the readers' windows let through."""
        for address, reader in list(self._readers.items()):
            if not reader.link.alive:
                del self._readers[address]
                continue
            while reader.jobs and reader.under_way < _WINDOW and self._send_next(reader, now):
                pass

    def _send_next(self, reader: _RemoteReader, now: float) -> bool:
        """False if the next message has to wait."""
        job = reader.jobs[0]
        if now > job.deadline:
            reader.jobs.popleft()
            return True
        pieces = job.messages[job.sent]
        # UCX reads a bundle's buffer until it is sent, so there are only so many at once.
        if len(pieces) > 1 and reader.bundles >= _BUNDLES:
            return False
        reader.under_way += 1
        if len(pieces) > 1:
            self._send_bundle(reader, job, pieces)
        else:
            self._send_piece(reader, job, pieces[0])
        job.sent += 1
        reader.jobs.rotate(-1)
        if job.sent == len(job.messages):
            reader.jobs.remove(job)
        return True

    def _send_piece(self, reader: _RemoteReader, job: _Job, piece: Piece) -> None:
        # That it did not arrive is for the reader to notice, as it is if this process dies.
        def then(_: str | None) -> None:
            reader.under_way -= 1

        # No copy: the connectors ask afterwards whether all of it was held until it had arrived.
        memory = job.region.view[piece[0] : piece[0] + piece[1]]
        self._worker.send(reader.link, memory, tag(DATA, job.transfer, job.sent), then)

    def _send_bundle(self, reader: _RemoteReader, job: _Job, pieces: list[Piece]) -> None:
        buffer = reader.buffers.take()
        reader.bundles += 1

        def then(_: str | None) -> None:
            reader.under_way -= 1
            reader.bundles -= 1
            reader.buffers.give(buffer)

        size = gather(buffer, job.region.view, pieces)
        name = tag(DATA, job.transfer, job.sent)
        self._worker.send(reader.link, buffer[:size], name, then)

    @property
    def waiting(self) -> int:
        """Reads of peers that are not sent to their end."""
        return sum(len(reader.jobs) for reader in self._readers.values())


def gather(buffer: Bytes, view: Bytes, pieces: list[Piece]) -> int:
    """Copy pieces one behind the other; returns their bytes."""
    at = 0
    for offset, size in pieces:
        buffer[at : at + size] = view[offset : offset + size]
        at += size
    return at


def scatter(buffer: Bytes, view: Bytes, pieces: list[Piece]) -> None:
    """Undo `gather` into other places."""
    at = 0
    for offset, size in pieces:
        view[offset : offset + size] = buffer[at : at + size]
        at += size
