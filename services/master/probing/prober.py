"""Probes the workers that were added by hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import TriptychError, UpstreamError
from protocol.fleet_key import NO_KEY, FleetKey
from services.master.config import MasterConfig
from services.master.fleet.added_workers import AddedWorkers, Probed
from services.master.probing.shortage import NotAsked

if TYPE_CHECKING:
    from services.master.probing.client import ProbeClient

logger = logging.getLogger(__name__)


@dataclass
class Prober:
    """`added` is set when there is a worker more to probe."""

    workers: AddedWorkers
    config: MasterConfig
    added: asyncio.Event
    key: FleetKey = NO_KEY

    async def run(self) -> None:
        """Probe again and again, until cancelled; one that has just been added is probed at once.
        A worker that answers late delays no other."""
        await self.added.wait()
        from services.master.probing.client import ProbeClient

        # This loop may begin again after a failure. A probe that was cancelled before its first
        # step has not run its `finally`, and its worker would never be asked again.
        for probed in self.workers.all():
            probed.asking = False
        due, config = 0.0, self.config
        client = ProbeClient(config.probe_timeout, self.key, config.client_context())
        async with client, asyncio.TaskGroup() as probes:
            while True:
                self.added.clear()
                everyone = time.monotonic() >= due
                if everyone:
                    due = time.monotonic() + self.config.probe_interval
                for probed in self.workers.all():
                    if not probed.asking and (everyone or probed.is_new):
                        probed.asking = True
                        probes.create_task(self._probe(client, probed))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, due - time.monotonic())):
                        await self.added.wait()

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
            metrics = await client.metrics_of(probed.url)
            self.workers.alive(probed, time.monotonic(), metrics)
        except NotAsked:
            logger.warning("%s cannot be probed: no files or memory are left", probed.url)
        # Also what the registry refuses: GET /instances shows it as the worker's error.
        except TriptychError as error:
            self.workers.failed(probed, error.message, time.monotonic())
        finally:
            probed.asking = False
