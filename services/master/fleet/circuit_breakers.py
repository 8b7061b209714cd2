"""Circuit breakers: workers that get no requests for a while because requests failed there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from protocol.logs import worker_line
from services.master.config import MasterConfig
from services.master.fleet.changelog import Changelog
from services.master.fleet.instance import Instance

logger = logging.getLogger(__name__)


@dataclass
class CircuitBreakers:
    """A breaker for each of the registry's `instances`. `opened` is called with (instance id, ms)
    when one opens by what was found out here; other masters are told then. Times are ms of the
    caller's monotonic clock."""

    config: MasterConfig
    instances: Mapping[str, Instance]
    changelog: Changelog
    opened: Callable[[str, float], None]
    _open: set[str] = field(default_factory=set)

    def failed(self, instance_ids: Iterable[str], now_ms: float) -> None:
        """Requests failed there; too many in a row open the breaker, one more after it closed."""
        for name in instance_ids:
            instance = self.instances.get(name)
            if instance is None or not self.config.breaker_failures:
                continue
            # Not set back when the breaker opens: once it has closed, one failure opens it again.
            instance.failures += 1
            if instance.failures >= self.config.breaker_failures:
                cause = f"{instance.failures} requests in a row failed there (--breaker-failures)"
                self.take_out(instance, now_ms, self.config.breaker_open * 1e3, cause)

    def succeeded(self, instance_id: str) -> None:
        """A request was served there: failures in a row begin anew."""
        instance = self.instances.get(instance_id)
        if instance is not None:
            instance.failures = 0

    def take_out(self, instance: Instance, now_ms: float, open_ms: float, cause: str) -> None:
        """No requests for it for so long, by what was found out here."""
        if instance.info.instance_id not in self._open:
            info = instance.info
            worker_line(logger, logging.WARNING, "avoided", info.role, info.url, cause)
        self.open(instance, now_ms, open_ms)
        self.opened(instance.info.instance_id, now_ms)

    def open(self, instance: Instance, now_ms: float, open_ms: float) -> None:
        """No requests for it for so long, by another master's word too."""
        # Never sooner than it would have closed: causes, and the flags of masters, differ in how
        # long they keep it open.
        instance.open_until = max(instance.open_until, now_ms + open_ms)
        self._open.add(instance.info.instance_id)
        self._update(instance, now_ms)

    def forgive(self, instance: Instance, now_ms: float) -> None:
        """What a worker has failed says nothing of it any more."""
        instance.failures, instance.open_until = 0, now_ms
        self._open.discard(instance.info.instance_id)
        self._update(instance, now_ms)

    def close_due(self, now_ms: float) -> None:
        """Close breakers that have been open for long enough."""
        for name in [n for n in self._open if self.instances[n].open_until <= now_ms]:
            self._open.discard(name)
            info = self.instances[name].info
            worker_line(logger, logging.INFO, "up", info.role, info.url, "its breaker closed")
            self._update(self.instances[name], now_ms)

    def forget(self, instance_id: str) -> None:
        """The worker has left."""
        self._open.discard(instance_id)

    def _update(self, instance: Instance, now_ms: float) -> None:
        instance.update_penalty(now_ms)
        self.changelog.note(instance.info.instance_id)
