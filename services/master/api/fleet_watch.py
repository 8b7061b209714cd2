"""Proxies that follow the fleet: each asks for what has changed, and waits until something has."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from protocol.registry import Workers
from services.master.fleet.changelog import changes_since
from services.master.fleet.registry import Registry

_SETTLE_S = 0.02  # a fleet that starts registers in a burst: one answer instead of hundreds
_MAX_WAITING = 4096


class FleetWatch:
    """Long polls on a registry's changelog, on one event loop. As many wait at once as
    `_MAX_WAITING`; others are answered at once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changed = asyncio.Event()
        self._waiting = 0

    def changed(self) -> None:
        """The changelog has grown."""
        if self._waiting:
            # Those who wait hold the old event: one set and kept would wake all later ones too.
            self._changed.set()
            self._changed = asyncio.Event()

    def since(self, cursor: str) -> Workers:
        """What has changed since a version, all workers if that is not known."""
        registry = self._registry
        now_ms = time.monotonic() * 1e3
        return changes_since(
            registry.changelog, registry.instances, registry.fleets, cursor, now_ms
        )

    async def wait(self, cursor: str, wait_s: float, left: asyncio.Future[Any]) -> Workers:
        """As `since`, but not before something has changed; at the latest in `wait_s` or when the
        caller has `left`."""
        found = self.since(cursor)
        if found.full or found.workers or found.gone:
            return found
        if not wait_s or self._waiting >= _MAX_WAITING:
            return found
        self._waiting += 1
        # Nothing is awaited between the look and this event: no change falls in between.
        waiting = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({waiting, left}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                await asyncio.sleep(_SETTLE_S)
        finally:
            waiting.cancel()
            self._waiting -= 1
        return self.since(cursor)
