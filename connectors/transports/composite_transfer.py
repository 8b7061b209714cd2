"""Transfers made of others, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from connectors.transports.base import Transfer
from protocol.errors import TransferError


class Copy(Transfer):
    """Something that the copying thread does."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def poll(self) -> bool:
        if self._future.done() and (problem := self._future.exception()) is not None:
            raise TransferError(f"staging: {problem}")
        return self._future.done()

    def cancel(self) -> None:
        # Only if it has not begun; else `settled` stays False until it has ended.
        self._future.cancel()

    @property
    def settled(self) -> bool:
        return self._future.done()


class CompositeTransfer(Transfer):
    """`first`, then the `rest`, each begun when the one before it has ended; `over` is called once
    nothing is read or written any more, and only then is the transfer settled: what comes to the
    same place next is not touched by it."""

    def __init__(
        self,
        first: Transfer | None,
        rest: Sequence[Callable[[], Transfer | None]] = (),
        over: Callable[[], None] = lambda: None,
    ) -> None:
        self._current = first
        self._rest = deque(rest)
        self._over: Callable[[], None] | None = over
        self._error: TransferError | None = None

    def advance(self) -> None:
        try:
            while self._error is None and (self._current is None or self._current.poll()):
                self._current = None
                if not self._rest:
                    break
                self._current = self._rest.popleft()()
        except TransferError as error:
            self._fail(error)
        if self._over is not None and self._ended:
            over, self._over = self._over, None
            over()

    def poll(self) -> bool:
        self.advance()
        if self._error is not None:
            raise self._error
        return self.settled

    def cancel(self) -> None:
        if self._over is not None:
            self._fail(TransferError("staging: the transfer was cancelled"))
            self.advance()

    def _fail(self, error: TransferError) -> None:
        self._error = self._error or error
        self._rest.clear()
        if self._current is not None:
            self._current.cancel()

    @property
    def _ended(self) -> bool:
        return not self._rest and (self._current is None or self._current.settled)

    @property
    def settled(self) -> bool:
        return self._over is None
