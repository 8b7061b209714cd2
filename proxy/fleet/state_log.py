"""A log line whenever a worker goes up or down, or is left alone for a while, with the cause."""

from __future__ import annotations

import logging

from protocol.logs import worker_line
from proxy.fleet.fleet import Fleet
from proxy.fleet.worker import Instance

logger = logging.getLogger(__name__)
_BAD = ("down", "frozen", "avoided")


def state_of(instance: Instance) -> str:
    """up; draining: it finishes what it has; avoided: calls failed there, so it gets none for a
    while; frozen: it has been silent for so long that its calls are given up; down."""
    if not instance.up:
        return "frozen" if instance.lost else "down"
    if not instance.breaker.closed:
        return "avoided"
    return "draining" if instance.draining else "up"


class StateLog:
    """The state of each worker as it was written last."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[Instance, str] = {}

    def look(self) -> None:
        """To be called when workers may have changed."""
        known, self._known = self._known, {one: state_of(one) for one in self._fleet.all()}
        for instance, state in self._known.items():
            if state != known.get(instance):
                level = logging.WARNING if state in _BAD else logging.INFO
                cause = _cause(instance, state)
                worker_line(logger, level, state, instance.role, instance.url, cause)


def _cause(instance: Instance, state: str) -> str:
    if state == "avoided":
        return f"{instance.breaker.failures} calls in a row failed (--breaker-failures)"
    return "" if state in ("up", "draining") else instance.cause
