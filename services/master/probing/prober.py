"""Probes the workers that were added by hand."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import TriptychError, UpstreamError
from services.master.config import MasterConfig
from services.master.fleet.added_workers import AddedWorkers, Probed

if TYPE_CHECKING:
    from services.master.probing.client import ProbeClient


@dataclass
class Prober:
    """`some` is set once there is a worker to probe."""

    workers: AddedWorkers
    config: MasterConfig
    some: asyncio.Event

    async def run(self) -> None:
        """Probe again and again, until cancelled. Who takes long to answer delays nobody else."""
        await self.some.wait()
        from services.master.probing.client import ProbeClient

        for probed in self.workers.all():
            probed.asking = False
        async with ProbeClient(self.config.probe_timeout) as client, asyncio.TaskGroup() as probes:
            while True:
                for probed in self.workers.all():
                    if not probed.asking:
                        probed.asking = True
                        probes.create_task(self._probe(client, probed))
                await asyncio.sleep(self.config.probe_interval)

    async def _name(self, client: ProbeClient, probed: Probed) -> None:
        """Adapters come and go. A worker whose model was given need not name any."""
        try:
            served = await client.models_of(probed.url)
        except UpstreamError:
            if not probed.model:
                raise
            return
        probed.learned = probed.learned or served.model
        probed.aliases, probed.adapters = [served.model, *served.aliases], served.adapters

    async def _probe(self, client: ProbeClient, probed: Probed) -> None:
        try:
            await client.health(probed.url, suspect=probed.failures > 0)
            await self._name(client, probed)
            load = await client.load_of(probed.url)
            self.workers.alive(probed, time.monotonic(), load)
        except TriptychError as error:
            self.workers.failed(probed, error.message, time.monotonic())
        finally:
            probed.asking = False
