"""What a master has to tell the others and has not told yet, and how long until they know it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from services.master.replication.messages import Change, Left, Removed, Resumed

_MOST_CHANGES = 100_000
_MOST_MESSAGES = 1000
_LASTING = (Left, Removed, Resumed)


@dataclass
class Outbox:
    """Changes in order, at most `_MOST_CHANGES`. `wake` is called for each; `counts` counts those
    "dropped" for want of room. `since`: when the oldest came (s, monotonic).

    What no master would say again outlasts a lost connection: that a worker has left, or was taken
    back from a drain. When the connection is back, who is there is announced again, which adds
    workers and drains them, but never the reverse."""

    wake: Callable[[], None]
    counts: Counter[str]
    since: float = 0.0
    _changes: deque[Change] = field(default_factory=deque)

    def put(self, change: Change, *, connected: bool) -> None:
        if not (connected or isinstance(change, _LASTING)):
            return
        if len(self._changes) >= _MOST_CHANGES:
            self.counts["dropped"] += 1
            return
        if not self._changes:
            self.since = time.monotonic()
        self._changes.append(change)
        self.wake()

    def take(self, most: int = _MOST_CHANGES) -> list[Change]:
        """What is to be told, in order."""
        return [self._changes.popleft() for _ in range(min(most, len(self._changes)))]

    def put_back(self, changes: Sequence[Change]) -> None:
        """These could not be told after all: of them, what lasts is told first."""
        self._changes.extendleft(c for c in reversed(changes) if isinstance(c, _LASTING))

    def keep_lasting(self) -> None:
        """The connection is lost."""
        self.put_back(self.take())


@dataclass
class Staleness:
    """`observe` gets the seconds from the oldest change in a message until Redis has handed it out.
    That needs no common clock: a master hears itself when the others hear it."""

    observe: Callable[[float], None]
    _sent: deque[tuple[bytes, float]] = field(default_factory=lambda: deque(maxlen=_MOST_MESSAGES))

    def sent(self, message: bytes, since: float) -> None:
        """It tells of changes from `since` on."""
        self._sent.append((message, since))

    def heard(self, message: bytes, now: float) -> None:
        """It has come back. Those sent before it that have not are lost."""
        if all(told != message for told, _ in self._sent):
            return  # it told of no change
        while self._sent:
            told, since = self._sent.popleft()
            if told == message:
                self.observe(now - since)
                return
