"""The reader's side of reads over UCX: which messages are expected, and where they land.

A range that is a message of its own lands in its place: its receive is posted when it is asked for,
and ended with an empty message of ours if the read fails before. Bundles wait until they announce
themselves: their pieces pass through a buffer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import numpy as np

from connectors.transports.base import Range, Transfer
from connectors.transports.ucx_owner import Buffers, Region, scatter
from connectors.transports.ucx_wire import (
    DATA,
    MAX_REASON,
    REQUEST,
    ReadRequest,
    StopRequest,
    plan,
    read_request,
    seal,
    tag,
    transfer_mask,
)
from connectors.transports.ucx_worker import Link, Message, UcxWorker
from protocol.errors import TransferError, TransferTimeout

_BUFFERS = 8


class UcxRead(Transfer):
    """`posted` are the messages, by index, that UCX may write into our memory; `bundles` those that
    have not come, `landing` counts the ones that are coming."""

    def __init__(
        self,
        worker: UcxWorker,
        transfer: int,
        peer: str,
        link: Link,
        local: Region,
        messages: Sequence[list[Range]],
        deadline: float,
    ) -> None:
        """`transfer` is its number, `messages` the ranges of each message, `deadline` of the
        monotonic clock."""
        self._worker = worker
        self._transfer = transfer
        self.peer = peer
        self.link = link
        self.local = local
        self.deadline = deadline
        self._single = {i: ranges[0] for i, ranges in enumerate(messages) if len(ranges) == 1}
        self.posted = set(self._single)
        self.bundles = {i: ranges for i, ranges in enumerate(messages) if len(ranges) > 1}
        self.landing = 0
        self.error: TransferError | None = None

    def begin(self, request: ReadRequest) -> None:
        """Ask for the messages, and post the receives of those that land in their place."""
        # Asked first: if that fails at once, no receive is posted that would have to be ended. The
        # answer cannot be faster, as bytes move in `UcxWorker.progress` only.
        self._ask(request)
        for index, where in self._single.items():
            if self.error is None:
                self._post(index, where)
            else:
                self.posted.discard(index)

    def _post(self, index: int, where: Range) -> None:
        def then(problem: str | None) -> None:
            self.posted.discard(index)
            self.landing += 1
            self.landed(problem)

        memory = self.local.view[where.local : where.local + where.size]
        number = self._transfer
        self._worker.post(self.link, memory, tag(DATA, number, index), then, number)

    def _ask(self, request: ReadRequest | StopRequest) -> None:
        def then(problem: str | None) -> None:
            if problem is not None:
                self.fail(TransferError(f"ucx: instance {self.peer} cannot be asked: {problem}"))

        self._worker.send(self.link, seal(request), tag(REQUEST), then)

    def poll(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.settled

    def cancel(self) -> None:
        self.fail(TransferError("ucx: the read was cancelled"))

    def fail(self, error: TransferError) -> None:
        """From here on nothing more is let in, and the owner is told. The first reason counts, and
        none does once everything is here."""
        if self.error is not None or self.settled:
            return
        self.error = error
        self.bundles.clear()
        self._stop()

    def _stop(self) -> None:
        """Let in nothing more than what has begun to arrive."""
        for index in self.posted:
            self._worker.void(tag(DATA, self._transfer, index))
        self._ask(StopRequest(self._worker.address, self.link.epoch, self._transfer))

    def landed(self, problem: str | None) -> None:
        if problem is not None:
            self.fail(TransferError(f"ucx: instance {self.peer} cannot be read from: {problem}"))
        self.landing -= 1

    @property
    def settled(self) -> bool:
        return not (self.posted or self.bundles or self.landing)


class UcxReader:
    """All reads of a transport. Their numbers start at random and are not used again, so a late
    message finds its transfer gone instead of another one's memory."""

    def __init__(self, worker: UcxWorker, timeout_s: float) -> None:
        self.late = 0
        self._worker = worker
        self._timeout = timeout_s
        self._reads: dict[int, UcxRead] = {}
        self._next = secrets.randbelow(transfer_mask())
        self._buffers = Buffers(_BUFFERS)

    def start(
        self, peer: str, link: Link, region: str, local: Region, ranges: Sequence[Range], host: bool
    ) -> UcxRead:
        """`host` says whether the peer's memory is the CPU's. `TransferError` if the ranges are
        more than a request can name."""
        messages = plan(ranges, bundles=local.host and host)
        transfer = self._next
        request = read_request(self._worker.address, link.epoch, transfer, region, messages)
        deadline = time.monotonic() + self._timeout
        read = UcxRead(self._worker, transfer, peer, link, local, messages, deadline)
        if messages:
            self._next = self._next + 1 & transfer_mask()
            self._reads[transfer] = read
            read.begin(request)
        return read

    def receive(self, message: Message, transfer: int, index: int) -> None:
        """Take a message for which no receive is posted: a bundle, or one whose read has ended."""
        read = self._reads.get(transfer)
        ranges = None if read is None else read.bundles.get(index)
        if read is None or ranges is None:
            # An empty one is ours (`UcxWorker.void`): what it was to stand in for had come.
            self.late += message.size > 0
            return self._worker.discard(message)
        if message.size != sum(r.size for r in ranges):
            self._worker.discard(message)
            return read.fail(TransferError(f"ucx: {message.size} bytes arrived for {ranges[:3]}"))
        del read.bundles[index]
        read.landing += 1
        return self._receive_bundle(message, read, ranges)

    def _receive_bundle(self, message: Message, read: UcxRead, ranges: list[Range]) -> None:
        buffer = self._buffers.take()

        def then(problem: str | None) -> None:
            if problem is None and read.error is None:
                scatter(buffer, read.local.view, [(r.local, r.size) for r in ranges])
            self._buffers.give(buffer)
            read.landed(problem)

        self._worker.receive(message, buffer[: message.size], then)

    def refused(self, message: Message, transfer: int) -> None:
        """The owner says why it does not send."""
        read = self._reads.get(transfer)
        if read is None or message.size > MAX_REASON:
            self.late += 1
            return self._worker.discard(message)
        text = np.empty(message.size, np.uint8)

        def then(problem: str | None) -> None:
            reason = problem or text.tobytes().decode(errors="replace")
            read.fail(TransferError(f"ucx: instance {read.peer} refused a read: {reason}"))

        return self._worker.receive(message, text, then)

    def fail(self, which: Callable[[UcxRead], bool], reason: str) -> None:
        for read in self._reads.values():
            if which(read):
                read.fail(TransferError(f"ucx: {reason}"))

    def tidy(self, now: float) -> None:
        """End reads whose peer is gone or late; forget those that nothing can write for."""
        for transfer, read in list(self._reads.items()):
            if read.error is None and not read.settled:
                self._check(read, now)
            if read.settled:
                del self._reads[transfer]

    def _check(self, read: UcxRead, now: float) -> None:
        if not read.link.alive:
            read.fail(TransferError(f"ucx: the connection to instance {read.peer} is broken"))
        elif now > read.deadline:
            reason = f"ucx: instance {read.peer} did not send within {self._timeout:g} s"
            read.fail(TransferTimeout(reason))

    def close(self) -> None:
        """For when nothing can write to our memory any more."""
        for read in self._reads.values():
            read.posted.clear()
            read.landing = 0
        self._reads.clear()

    @property
    def unsettled(self) -> list[str]:
        """The peers of reads that have not ended."""
        return [read.peer for read in self._reads.values()]
