"""Workers whose own master is silent, or that are known through a Redis that is away: asked
whether they are alive, so that a fleet outlives the master that its workers talk to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.errors import UpstreamError
from protocol.registry import InstanceInfo
from services.master.config import MasterConfig
from services.master.probing.shortage import NotAsked
from services.master.replication.messages import Joined, Kept
from services.master.replication.replicator import Replicator

if TYPE_CHECKING:
    from services.master.probing.client import ProbeClient


@dataclass
class OrphanProber:
    """Renews the leases of those that answer. The others' lapse as usual."""

    replicator: Replicator
    config: MasterConfig
    _asking: set[str] = field(default_factory=set)
    _silent: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Probe again and again, until cancelled. A worker that answers late delays no other."""
        # Here after a failure too: a probe that was cancelled before its first step has not run
        # its `finally`, and its worker would never be asked again.
        self._asking.clear()
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as probes:
            client: ProbeClient | None = None
            while True:
                found = orphans(self.replicator, time.monotonic(), self.config.orphan_ttl)
                self._silent &= {info.instance_id for info in found}
                for info in found:
                    client = client or await self._client(stack)
                    if info.instance_id not in self._asking:
                        self._asking.add(info.instance_id)
                        probes.create_task(self._probe(client, info))
                # They are orphans from half a lease on: three tries before it lapses.
                await asyncio.sleep(self.config.lease / 6)

    async def _client(self, stack: contextlib.AsyncExitStack) -> ProbeClient:
        from services.master.probing.client import ProbeClient

        return await stack.enter_async_context(
            # Without the fleet key: /health asks for none, and another process may be there now.
            ProbeClient(self.config.probe_timeout, tls=self.config.client_context())
        )

    async def _probe(self, client: ProbeClient, info: InstanceInfo) -> None:
        name = info.instance_id
        try:
            await client.health(info.url, suspect=name in self._silent)
        except NotAsked:  # neither silent nor alive
            return
        except UpstreamError:
            self._silent.add(name)
            self.replicator.counts["orphans_silent"] += 1
            return
        finally:
            self._asking.discard(name)
        self._silent.discard(name)
        self.replicator.counts["orphans_alive"] += 1
        keep(self.replicator, info, time.monotonic())


def orphans(replicator: Replicator, now: float, longest_s: float) -> list[InstanceInfo]:
    """Workers whose home says nothing, and has not for less than `longest_s`."""
    lease, instances = replicator.master.config.lease, replicator.master.registry.instances
    return [
        instances[name].info
        for name, home in replicator.homes.elsewhere.items()
        if lease / 2 < now - home.heard < longest_s
        and not (replicator.connected and home.master in replicator.others)
    ]


def keep(replicator: Replicator, info: InstanceInfo, now: float) -> None:
    """An orphan answers for itself: renew its lease, here and where masters that start look."""
    known = replicator.master.registry.instances.get(info.instance_id)
    home = replicator.homes.elsewhere.get(info.instance_id)
    # While it was asked it may have left, come here, or restarted: a new process was not asked.
    if known is None or home is None or known.info.generation != info.generation:
        return
    replicator.master.registry.touch(info.instance_id, now * 1e3, replicator.master.config.lease)
    age_ms = max(0.0, now * 1e3 - known.since)
    joined = Joined(known.info, home.master, known.drained, age_ms, known.says_draining)
    replicator.tell(Kept(joined))
