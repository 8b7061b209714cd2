"""A circuit breaker: a worker that keeps failing is left alone for a while."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Breaker:
    """Closed until `threshold` failures in a row, then open for `cooldown_s`.

    After that one request at a time is let through: its success closes the breaker, its failure, or
    no news for another `cooldown_s`, keeps it open. Times are of one monotonic clock.
    """

    threshold: int = 5
    cooldown_s: float = 10.0
    failures: int = 0
    open_until: float = 0.0

    @property
    def closed(self) -> bool:
        return self.failures < self.threshold

    def admits(self, now: float) -> bool:
        """Whether a request may be sent."""
        return self.closed or now >= self.open_until

    def wait_s(self, now: float) -> float:
        """Seconds until a request may be sent."""
        return 0.0 if self.closed else max(0.0, self.open_until - now)

    def started(self, now: float) -> None:
        """A request is sent; past the threshold it is a trial, and the only one."""
        if self.failures >= self.threshold:
            self.open_until = now + self.cooldown_s

    def succeeded(self) -> None:
        self.failures = 0

    def failed(self, now: float) -> None:
        self.failures += 1
        if not self.closed:
            self.open_until = now + self.cooldown_s

    def forgive(self) -> None:
        """The last failure was not the worker's fault."""
        self.failures = max(0, self.failures - 1)
