"""A UCX worker: links to peers, tagged sends, and receives.

What is expected lands where it belongs: its receive is posted before it comes. ucxx cannot cancel
one receive; it is ended with an empty message of ours, and what is not expected any more is thrown
away when it arrives.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from connectors.transports.ucx_settings import load, settings
from connectors.transports.ucx_wire import Epochs
from protocol.errors import ConfigError, TransferError

logger = logging.getLogger(__name__)
Then = Callable[[str | None], None]
"""Called once with what went wrong, None if nothing did."""

_BUDGET = 1024  # messages taken in one poll
_REST_MS = 5
_CLOSE_S = 1.0


@dataclass(eq=False)
class Link:
    """A connection to the worker at `address`; it serves both directions. `epoch` counts the times
    that either side has ended it: UCX does not tell the other side, which could still send small
    messages over what is left of its own end, but no large ones."""

    address: bytes
    endpoint: Any
    epoch: int

    @property
    def alive(self) -> bool:
        return bool(self.endpoint.alive)


@dataclass(frozen=True)
class Message:
    """One that has arrived or announced itself. It must be received or discarded."""

    tag: int
    size: int
    handle: Any


_Operation = tuple[Any, Any, Then]
"""A request, its memory (referenced for as long as UCX uses it), and who is told of its end."""


class UcxWorker:
    """`host` is the address to listen on. Bytes move only in `progress`: a thread of UCX's own
    would wake for each packet, also on the core that another process has just taken."""

    def __init__(self, host: str) -> None:
        chosen = settings(host)
        self._api, self._array = load()
        features = (self._api.Feature.TAG, self._api.Feature.WAKEUP)
        try:
            self._context = self._api.UCXContext(chosen, features)
            self._worker = self._api.UCXWorker(self._context)
            self._worker.init_blocking_progress_mode()
        except self._api.UCXError as error:
            raise ConfigError(f"ucx: {error} with {chosen}") from None
        self.address: bytes = self._worker.address.tobytes()
        self.cuda: bool = self._context.cuda_support and torch.cuda.is_available()
        self._tag = self._api.UCXXTag
        self._any = (self._tag(0), self._api.UCXXTagMask(0))
        self._whole = self._api.UCXXTagMask((1 << 64) - 1)
        self._sink, self._nothing = np.empty(1, np.uint8), np.empty(0, np.uint8)
        self._links: dict[bytes, Link] = {}
        self._epochs = Epochs()
        # So that a poll looks at the first operation of each queue, and not at all of them.
        self._queues: dict[Hashable, deque[_Operation]] = {}
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLIN)

    @property
    def descriptor(self) -> int:
        """Readable when `progress` has something to do after an `arm`."""
        return int(self._worker.epoll_file_descriptor)

    def arm(self) -> bool:
        """False if there is something to do at once."""
        return bool(self._worker.arm())

    def rest(self) -> None:
        """Sleep until there is something to do, but not for long."""
        if self.arm():
            self._poll.poll(_REST_MS)

    def link(self, address: bytes, epoch: int = 0) -> Link:
        """The connection to a worker, made if there is none, it is broken or the peer says that its
        `epoch` is over. That no process listens there shows later. `TransferError` if UCX knows no
        way.
        """
        known = self._links.get(address)
        if known is not None and known.alive and known.epoch >= epoch:
            return known
        self.cut(address)
        try:
            remote = self._api.UCXAddress.create_from_buffer(address)
            # True: with error handling, without which the end of a peer goes unnoticed.
            endpoint = self._worker.create_endpoint_from_worker_address(remote, True)
        except self._api.UCXError as error:
            raise TransferError(f"ucx: the peer cannot be reached: {error}") from None
        link = Link(address, endpoint, self._epochs.begin(address, epoch))
        self._links[address] = link
        return link

    def cut(self, address: bytes) -> None:
        """End a connection at once, if there is one; what is under way on it fails."""
        link = self._links.pop(address, None)
        if link is not None:
            self._epochs.ended(address, link.epoch)
            link.endpoint.close_blocking(int(_CLOSE_S * 1e9), 1)

    def send(self, link: Link, memory: Any, tag: int, then: Then) -> None:
        """`memory` (bytes, array or CUDA tensor, contiguous) keeps its contents until `then`."""
        if not link.alive:
            return then("the connection is broken")
        return self._start(link.endpoint.tag_send, memory, (self._tag(tag),), then, link)

    def post(self, link: Link, memory: Any, tag: int, then: Then, queue: int) -> None:
        """Let the message of this tag into `memory` when it comes; a longer one is an error, of a
        shorter one UCX says nothing. Ends with the link. Those of a `queue` end in their order."""
        where = self._tag(tag), self._whole
        self._start(link.endpoint.tag_recv, memory, where, then, queue)

    def void(self, tag: int) -> None:
        """End the posted receive of this tag, unless its message comes or has begun to."""
        try:
            ourselves = self.link(self.address)
        except TransferError as error:
            logger.warning("%s", error.message)  # the receive ends with its link
        else:
            self.send(ourselves, self._nothing, tag, _ignore)

    def _start(
        self, call: Any, memory: Any, where: tuple[Any, ...], then: Then, queue: Hashable
    ) -> None:
        try:
            request = call(self._array(memory), *where)
        except self._api.UCXError as error:
            return then(str(error))
        known = self._queues.get(queue)
        if known is None:
            known = self._queues[queue] = deque()
        return known.append((request, memory, then))

    def messages(self) -> Iterator[Message]:
        """Those that are here, to a bound."""
        for _ in range(_BUDGET):
            found = self._worker.tag_probe(*self._any, remove=True)
            if not found.matched:
                return
            yield Message(found.sender_tag.value, found.length, found)

    def receive(self, message: Message, memory: Any, then: Then) -> None:
        """Let a message that has been announced into `memory`, which is as large."""
        where = (message.handle,)
        self._start(self._worker.tag_recv_with_handle, memory, where, then, message.handle)

    def discard(self, message: Message) -> None:
        """Throw a message away; its sender does not wait for a receiver."""
        # Larger than the sink, as a rule: UCX drops the rest and calls it an error.
        self.receive(message, self._sink, _ignore)

    def progress(self) -> None:
        """Move bytes, and close connections that have broken."""
        self._worker.progress()
        for link in tuple(self._links.values()):
            if not link.endpoint.alive:
                self.cut(link.address)

    def complete(self) -> None:
        """Report every send and receive that has ended, and those before it in its queue."""
        # A copy, as `then` may begin another operation.
        for queue, operations in list(self._queues.items()):
            while operations and operations[0][0].completed:
                request, _, then = operations.popleft()
                then(self._problem(request))
            if not operations:
                del self._queues[queue]

    def _problem(self, request: Any) -> str | None:
        try:
            request.check_error()
        except self._api.UCXError as error:
            return str(error)
        return None

    @property
    def linked(self) -> bool:
        """Whether there are connections."""
        return bool(self._links)

    @property
    def busy(self) -> int:
        """Sends and receives under way."""
        return sum(map(len, self._queues.values()))

    def close(self) -> None:
        """Cut every connection, then wait, within bounds, until UCX has let go of all memory."""
        for address in list(self._links):
            self.cut(address)
        deadline = time.monotonic() + _CLOSE_S
        while self._drain() and time.monotonic() < deadline:
            self._worker.progress()
        if self.busy:
            logger.warning("ucx: %d operations are still running", self.busy)
        self._queues.clear()
        self._worker = self._context = None

    def _drain(self) -> bool:
        """Whether there was anything left. UCX's own clean-up waits for messages without bound."""
        messages = list(self.messages())
        for message in messages:
            self.discard(message)
        self.complete()
        return bool(messages or self._queues)


def _ignore(_: str | None) -> None:
    pass
