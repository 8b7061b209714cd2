"""What a master is told: stages that are over, in batches, and workers that take no requests. What
cannot be told lapses there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from protocol.errors import TriptychError
from protocol.placement import FINISHED_PATH, Finished, FinishedReports
from protocol.registry import SUSPECT_PATH, LeaseAnswer, Suspected
from proxy.placement.master_client import MasterClient

_TOGETHER_S = 0.01
_TIMEOUT_S = 2.0
_MOST = 4096


class Reporter:
    """At most `_MOST` reports wait; the oldest are dropped."""

    def __init__(self, client: MasterClient) -> None:
        self._client = client
        self._waiting: deque[Finished] = deque(maxlen=_MOST)
        self._suspects: dict[str, str] = {}
        self._some = asyncio.Event()

    def add(self, report: Finished) -> None:
        self._waiting.append(report)
        self._some.set()

    def suspect(self, instance_id: str, generation: str) -> None:
        """This worker takes no requests."""
        self._suspects[instance_id] = generation
        self._some.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_TOGETHER_S)
            self._some.clear()
            suspects, self._suspects = self._suspects, {}
            reports = list(self._waiting)
            self._waiting.clear()
            if self._client.present:
                for name, generation in suspects.items():
                    await self._tell(SUSPECT_PATH, Suspected(name, generation))
                if reports:
                    await self._tell(FINISHED_PATH, FinishedReports(reports))

    async def _tell(self, path: str, body: Suspected | FinishedReports) -> None:
        with contextlib.suppress(TriptychError):
            await self._client.post(path, body, LeaseAnswer, time.monotonic() + _TIMEOUT_S)
