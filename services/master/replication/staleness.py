"""How old what the other masters know is, told by a master's own messages that come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST = 1000


@dataclass
class Staleness:
    """`observe` gets the seconds from the oldest change in a message until Redis has handed it out.
    That needs no common clock: a master hears itself when the others hear it."""

    observe: Callable[[float], None]
    _sent: deque[tuple[bytes, float]] = field(default_factory=lambda: deque(maxlen=_MOST))

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
