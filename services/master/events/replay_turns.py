"""Whose replay is under way: a master that starts asks a thousand workers for all they hold."""

from __future__ import annotations

import asyncio
from typing import Protocol

_AT_ONCE = 64
_SILENT_S = 0.25
_MOST_S = 10.0  # a large snapshot takes a second


class Asker(Protocol):
    """Asks its source once it is its turn, and says so when all has come."""

    def begin(self, start: int) -> None: ...


class ReplayTurns:
    """Replays in the order they were wanted, `_AT_ONCE` at a time: no more snapshots than that lie
    in memory, and none waits so long behind the others that it is taken to be lost. A source that
    says nothing for `_SILENT_S`, or has not said all within `_MOST_S`, does not hold up the next;
    its answers count when they come."""

    def __init__(self) -> None:
        self._waiting: dict[Asker, int] = {}
        self._busy: dict[Asker, asyncio.TimerHandle] = {}
        self._answering: set[Asker] = set()

    @property
    def under_way(self) -> int:
        return len(self._busy)

    def want(self, asker: Asker, start: int) -> None:
        """`asker` begins at once if it has the turn or one is free."""
        if asker in self._busy:
            # Within what is left of its turn: to ask again and again does not hold up the others.
            asker.begin(start)
        else:
            self._waiting[asker] = start
            self._next()

    def heard(self, asker: Asker) -> None:
        """Its source answers."""
        timer = self._busy.get(asker)
        # The first answer alone gives more time: a source that drips must not keep its turn.
        if timer is None or asker in self._answering:
            return
        timer.cancel()
        self._answering.add(asker)
        loop = asyncio.get_running_loop()
        self._busy[asker] = loop.call_later(_MOST_S, self.done, asker)

    def done(self, asker: Asker) -> None:
        """It wants nothing more. Idempotent."""
        self._waiting.pop(asker, None)
        self._answering.discard(asker)
        timer = self._busy.pop(asker, None)
        if timer is not None:
            timer.cancel()
            self._next()

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._busy) < _AT_ONCE:
            asker, start = next(iter(self._waiting.items()))
            del self._waiting[asker]
            self._busy[asker] = loop.call_later(_SILENT_S, self.done, asker)
            asker.begin(start)
