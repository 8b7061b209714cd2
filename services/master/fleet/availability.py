"""Whether a worker may get requests, by what it says of itself and what a master was told of it."""

from __future__ import annotations

import logging

from protocol.logs import worker_line
from protocol.registry import Heartbeat
from services.master.fleet.changelog import Changelog
from services.master.fleet.circuit_breakers import CircuitBreakers
from services.master.fleet.instance import Instance

logger = logging.getLogger(__name__)


class Availability:
    """Drains and stalls. What changes is noted in `changelog`."""

    def __init__(self, breakers: CircuitBreakers, changelog: Changelog) -> None:
        self._breakers = breakers
        self._changelog = changelog

    def heard(self, instance: Instance, beat: Heartbeat, now_ms: float) -> None:
        """What a worker says in a heartbeat.

        A worker that a call has taken back goes on saying that a master drained it until it has
        heard of that in an answer: its word must not drain it once more.
        """
        by_us = instance.resumed and beat.drained_by_master
        instance.resumed = by_us and beat.draining
        self._set_draining(instance, instance.drained, beat.draining and not by_us, now_ms)
        self._set_stalled(instance, beat.stalled, now_ms)

    def drain(self, instance: Instance, draining: bool, now_ms: float) -> None:
        """As a master was told; what a worker has said by itself still counts once it says it
        again."""
        instance.resumed = not draining and instance.draining
        self._set_draining(instance, draining, draining and instance.says_draining, now_ms)

    def drains_itself(self, instance: Instance, now_ms: float) -> None:
        """The worker's own word, as another master passes it on: its next heartbeat counts for
        more."""
        self._set_draining(instance, instance.drained, True, now_ms)

    def _set_draining(self, instance: Instance, drained: bool, says: bool, now_ms: float) -> None:
        before = instance.draining
        instance.drained, instance.says_draining = drained, says
        if instance.draining != before:
            event = "draining" if instance.draining else "up"
            cause = "a master was told so" if drained else "its own word"
            worker_line(logger, logging.INFO, event, instance.info.role, instance.info.url, cause)
            self._update(instance, now_ms)

    def _set_stalled(self, instance: Instance, stalled: bool, now_ms: float) -> None:
        """What it failed while its engine stood still says nothing of it once that goes on."""
        if instance.stalled == stalled:
            return
        instance.stalled = stalled
        info = instance.info
        if stalled:
            cause = "its engine makes no progress"
            worker_line(logger, logging.WARNING, "frozen", info.role, info.url, cause)
        else:
            worker_line(logger, logging.INFO, "up", info.role, info.url, "its engine goes on")
        if not stalled:
            self._breakers.forgive(instance, now_ms)
        self._update(instance, now_ms)

    def _update(self, instance: Instance, now_ms: float) -> None:
        """Whether it may be used has changed, or may have."""
        instance.update_penalty(now_ms)
        self._changelog.note(instance.info.instance_id)
