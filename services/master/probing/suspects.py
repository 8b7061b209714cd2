"""Workers that a proxy could not connect to: asked at once whether they are alive."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import UpstreamError
from protocol.registry import LeaseAnswer, Suspected
from services.master.config import MasterConfig
from services.master.fleet.instance import Instance
from services.master.fleet.registry import Registry
from services.master.probing.shortage import NotAsked

if TYPE_CHECKING:
    from services.master.probing.client import ProbeClient

_MAX_WAITING = 256
_AGAIN_S = 1.0  # a fleet of proxies complains of one dead worker at the same moment


@dataclass
class SuspectProber:
    """One that does not answer gets no requests for a lease. A dead one is forgotten by then, one
    that has restarted registers and is another; one that is merely cut off is asked again for the
    next proxy that cannot reach it.

    However many proxies complain, a worker is asked once a second at the most, and of all suspects
    as many wait to be asked as the queue holds. `counts`: told, skipped, alive, silent.
    """

    registry: Registry
    config: MasterConfig
    counts: Counter[str] = field(default_factory=Counter)
    _queue: asyncio.Queue[Instance] = field(init=False)
    _asked: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._queue = asyncio.Queue(_MAX_WAITING)

    def suspect(self, suspected: Suspected, now: float) -> LeaseAnswer:
        """A proxy could not connect to a worker; `known` false if it has restarted since."""
        self.counts["told"] += 1
        instance = self.registry.named(suspected.instance_id, suspected.generation)
        if instance is None:
            return LeaseAnswer(False)
        name = instance.info.instance_id
        asked_lately = now - self._asked.get(name, -_AGAIN_S) < _AGAIN_S
        # Dropped, not waited for: the next proxy that cannot connect says so again.
        if asked_lately or self._queue.full():
            self.counts["skipped"] += 1
        else:
            self._asked[name] = now
            self._queue.put_nowait(instance)
        return LeaseAnswer(True, self.config.lease, instance.draining)

    async def run(self) -> None:
        """Until cancelled. The client is imported for the first suspect."""
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as probes:
            client: ProbeClient | None = None
            while True:
                instance = await self._queue.get()
                self._forget_old(time.monotonic())
                if client is None:
                    from services.master.probing.client import ProbeClient

                    client = ProbeClient(
                        self.config.probe_timeout, tls=self.config.client_context()
                    )
                    await stack.enter_async_context(client)
                probes.create_task(self._probe(client, instance))

    def _forget_old(self, now: float) -> None:
        self._asked = {name: at for name, at in self._asked.items() if now - at < _AGAIN_S}

    async def _probe(self, client: ProbeClient, instance: Instance) -> None:
        info = instance.info
        try:
            await client.health(info.url, suspect=True)
            self.counts["alive"] += 1
        except NotAsked:
            self.counts["skipped"] += 1
        except UpstreamError:
            self.counts["silent"] += 1
            # A worker that has restarted meanwhile is another instance, which was not asked.
            if self.registry.instances.get(info.instance_id) is instance:
                now_ms = time.monotonic() * 1e3
                open_ms = self.config.lease * 1e3
                cause = "a proxy could not connect to it, and it answers no probe"
                self.registry.breakers.take_out(instance, now_ms, open_ms, cause)
