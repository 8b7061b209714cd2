"""Who is told of what happens to workers."""

from __future__ import annotations

from protocol.registry import InstanceInfo


class FleetListener:
    """Does nothing; a subclass overrides what it wants to be told of. It is called in the middle of
    a change and must not change workers itself."""

    def joined(self, info: InstanceInfo) -> None:
        """A worker has come or has restarted: its events are to be followed."""

    def left(self, info: InstanceInfo) -> None:
        """A worker is forgotten."""

    def opened(self, instance_id: str, now_ms: float) -> None:
        """Failures reported here have opened a worker's circuit breaker."""

    def changed(self) -> None:
        """The changelog has grown."""
