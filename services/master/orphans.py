"""Workers whose own master is silent, or that are known through a Redis that is away: asked
whether they are alive, so that a fleet outlives the master that its workers talk to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import UpstreamError
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.exchange import Exchange
from services.master.peer_messages import Joined, Kept

if TYPE_CHECKING:
    from services.master.probing import ProbeClient


@dataclass
class OrphanProber:
    """Renews the leases of those that answer. The others' lapse as usual."""

    exchange: Exchange
    config: MasterConfig

    async def run(self) -> None:
        """Probe again and again, until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            client: ProbeClient | None = None
            while True:
                found = orphans(self.exchange, time.monotonic(), self.config.orphan_ttl)
                if found:
                    client = client or await self._client(stack)
                    await asyncio.gather(*(self._probe(client, info) for info in found))
                await asyncio.sleep(self.config.lease / 6)

    async def _client(self, stack: contextlib.AsyncExitStack) -> ProbeClient:
        from services.master.probing import ProbeClient

        return await stack.enter_async_context(ProbeClient(self.config.probe_timeout))

    async def _probe(self, client: ProbeClient, info: InstanceInfo) -> None:
        try:
            await client.health(info.url)
        except UpstreamError:
            self.exchange.counts["orphans_silent"] += 1
            return
        self.exchange.counts["orphans_alive"] += 1
        keep(self.exchange, info, time.monotonic())


def orphans(exchange: Exchange, now: float, longest_s: float) -> list[InstanceInfo]:
    """Workers whose home says nothing, and has not for less than `longest_s`."""
    lease, instances = exchange.master.config.lease, exchange.master.registry.instances
    return [
        instances[name].info
        for name, home in exchange.homes.items()
        if lease / 2 < now - home.heard < longest_s
        and not (exchange.connected and home.master in exchange.peers)
    ]


def keep(exchange: Exchange, info: InstanceInfo, now: float) -> None:
    """An orphan answers for itself: renew its lease, here and where masters that start look."""
    known = exchange.master.registry.instances.get(info.instance_id)
    home = exchange.homes.get(info.instance_id)
    if known is None or home is None or known.info.generation != info.generation:
        return
    exchange.master.registry.touch(info.instance_id, now * 1e3, exchange.master.config.lease)
    exchange.tell(Kept(Joined(known.info, home.master, known.draining)))
