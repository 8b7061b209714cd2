"""Stages that are over, told to the master in batches; what cannot be told lapses there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from protocol.errors import TriptychError
from protocol.registry import FINISHED_PATH, Finished, FinishedReports, LeaseAnswer
from proxy.placement.master_client import MasterClient

_TOGETHER_S = 0.01
_TIMEOUT_S = 2.0
_MOST = 4096


class Reporter:
    """At most `_MOST` reports wait; the oldest are dropped."""

    def __init__(self, link: MasterClient) -> None:
        self._link = link
        self._waiting: deque[Finished] = deque(maxlen=_MOST)
        self._some = asyncio.Event()

    def add(self, report: Finished) -> None:
        self._waiting.append(report)
        self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_TOGETHER_S)
            self._some.clear()
            reports = list(self._waiting)
            self._waiting.clear()
            if self._link.present:
                with contextlib.suppress(TriptychError):
                    await self._link.post(
                        FINISHED_PATH,
                        FinishedReports(reports),
                        LeaseAnswer,
                        time.monotonic() + _TIMEOUT_S,
                    )
