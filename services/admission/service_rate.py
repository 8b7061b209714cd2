"""How fast a queue moves."""

from __future__ import annotations

_KEPT = 0.98  # of what was learnt, with each one that leaves: some fifty count


class ServiceRate:
    """The time between two that leave a queue, learnt only while a request waits: else it would be
    the rate of arrivals. They may leave in bursts. Times are of the caller's clock and unit."""

    def __init__(self) -> None:
        self._since = 0.0
        self._spent = 0.0
        self._left = 0.0

    def begin(self, now: float) -> None:
        """A request waits, and none did before."""
        self._since = now

    def leave(self, now: float) -> None:
        """One more has left since a request began to wait."""
        self._spent = self._spent * _KEPT + now - self._since
        self._left = self._left * _KEPT + 1.0
        self._since = now

    @property
    def known(self) -> bool:
        """Whether anybody has left yet."""
        return self._left > 0.0

    def wait(self, before: int) -> float:
        """How long so many take to leave; 0 while nothing is known."""
        return before * self._spent / self._left if self._left else 0.0
