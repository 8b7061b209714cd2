"""Reads over NIXL, and the peers that they are from."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from connectors.transports.base import Transfer
from connectors.transports.nixl_agent import Agent, NixlDescription
from protocol.errors import TransferError, TransferTimeout


@dataclass(eq=False)
class NixlPeer:
    """A peer between two of its restarts. `broken` from the first read that failed until NIXL
    connects anew."""

    agent: str
    regions: dict[str, NixlDescription] = field(default_factory=dict)
    reads: list[NixlRead] = field(default_factory=list)
    broken: bool = False

    def advance(self) -> None:
        """Look which reads have ended."""
        for read in self.reads:
            read.advance()
        self.reads = [read for read in self.reads if not read.settled]

    def fail(self, reason: str) -> None:
        """End all reads."""
        for read in self.reads:
            read.fail(reason)


class NixlRead(Transfer):
    """Holds its NIXL handle until NIXL has ended the transfer, wanted or not."""

    def __init__(self, agent: Agent, remote: NixlPeer, handle: int, timeout_s: float) -> None:
        self._agent = agent
        self._remote = remote
        self._handle: int | None = handle
        self._timeout = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._error: TransferError | None = None
        self.advance()

    def advance(self) -> None:
        """Look whether it has ended, and give the handle back if so."""
        if self._handle is None:
            return
        try:
            if not self._agent.done(self._handle):
                return
        except TransferError as error:
            self._remote.broken = True
            self.fail(error.message)
        self.release()

    def fail(self, reason: str) -> None:
        """`poll` raises from here on, unless the bytes had arrived before."""
        if self._handle is not None and self._error is None:
            self._error = TransferError(reason)

    def release(self) -> None:
        if self._handle is not None:
            self._agent.release(self._handle)
            self._handle = None

    def poll(self) -> bool:
        self.advance()
        if self._error is not None:
            raise self._error
        if self._handle is not None and time.monotonic() > self._deadline:
            self._error = TransferTimeout(
                f"nixl: the read from {self._remote.agent} did not end within {self._timeout} s"
            )
            raise self._error
        return self._handle is None

    def cancel(self) -> None:
        self.fail("nixl: the read was cancelled")

    @property
    def settled(self) -> bool:
        return self._handle is None
