"""The master on a real clock: no worker lapses while the master is deaf, and no error stops it."""

import asyncio
import time

import pytest

from protocol.registry import Heartbeat, InstanceInfo
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.master import Master
from tests.support.waiting import eventually

LEASE_S = 0.5  # a busy machine holds a process up, too


def service() -> MasterService:
    made = MasterService(MasterConfig(lease=LEASE_S))
    register(made)
    return made


def register(made: MasterService) -> None:
    made.register(InstanceInfo("w", "decode", "http://w:1", "m"))


def hold_up(seconds: float) -> None:
    """Everything that comes meanwhile waits to be read."""
    time.sleep(seconds)


async def test_leases_wait_for_a_loop_that_was_held_up() -> None:
    made = service()
    async with made.running():
        registry, others = made.master.registry, made.replicator.others
        await asyncio.sleep(0.05)  # it ticks
        register(made)  # anew: its lease may have passed meanwhile
        others.greet("other", time.monotonic())
        beats: list[bool] = []
        asyncio.get_running_loop().call_later(
            LEASE_S, lambda: beats.append(made.heartbeat(Heartbeat("w")).known)
        )
        hold_up(2 * LEASE_S)
        await eventually(lambda: bool(beats))
        assert beats == [True]
        assert "w" in registry.instances and "other" in others
        await eventually(lambda: not registry.instances and not len(others))


async def test_an_error_does_not_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    expire, failed = Master.expire, list[float]()

    def fails_at_first(self: Master, now: float) -> None:
        if not failed:
            failed.append(now)
            raise OverflowError("int too large to convert")
        expire(self, now)

    monkeypatch.setattr(Master, "expire", fails_at_first)
    made = service()
    async with made.running():
        await eventually(lambda: bool(failed))
        await eventually(lambda: not made.master.registry.instances)
