"""A worker tells real HTTP servers, its masters, that it is there."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from protocol.registry import Heartbeat, InstanceInfo, LeaseAnswer, StageRole
from services.master.config import MasterConfig
from services.master.fleet.registry import Registry
from services.membership import registration
from services.membership.registration import Changes, Registration

WAIT_S = 10.0


class Worker:
    """A member whose state the test changes."""

    draining = failed = False
    role: StageRole | None = None

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}

    def serve(self, role: StageRole) -> None:
        self.role = role

    def drain(self) -> None:
        self.draining = True

    def resume(self) -> None:
        self.draining = False

    async def info(self) -> InstanceInfo:
        return InstanceInfo(
            "w", "decode", "http://w:1", "m", "life",
            adapters=list(self.adapters), adapter_revisions=self.adapters,
        )  # fmt: skip

    async def heartbeat(self) -> Heartbeat:
        return Heartbeat("w", "life", draining=self.draining)


class Master:
    """The worker's side of a master: it knows who has registered, until it `forget`s."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.calls: list[tuple[str, Any, float]] = []
        self.known, self.knows = False, True
        self.drained = self.resumed = False
        self.role: StageRole | None = None
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.calls]

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.path, body, time.monotonic()))
        if request.path == "/register":
            self.known = self.knows
        lease_s = self.lease_s if self.known else 0.0
        answer = LeaseAnswer(self.known, lease_s, self.drained, self.resumed, self.role)
        if request.path == "/deregister":
            self.known = False
        return web.Response(body=msgspec.json.encode(answer))

    async def until(self, path: str, count: int = 1) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.paths().count(path) < count:
            assert time.monotonic() < deadline, self.paths()
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a master that answers does not fail because this machine is slow."""
    monkeypatch.setattr(registration, "_TIMEOUT_S", 20.0)


def hurry(made: Registration, seconds: float) -> None:
    """The calls from here on, those to masters that hang too, take no longer."""
    assert made._session is not None
    made._session._timeout = aiohttp.ClientTimeout(total=seconds)


@contextlib.asynccontextmanager
async def serving(master: Master) -> AsyncGenerator[Master, None]:
    app = web.Application()
    app.router.add_post("/{path}", master.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    master.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield master
    finally:
        await runner.cleanup()


async def test_every_master_is_told_and_one_that_is_down_or_silent_harms_none() -> None:
    worker = Worker()
    silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    hanging = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with serving(Master(60.0)) as one, serving(Master(60.0)) as two:
        masters = [one.url, "http://127.0.0.1:9", hanging, two.url]
        changes = Changes()
        registration = Registration([worker], masters, 30.0, changes)
        registration.start()
        await asyncio.gather(one.until("/heartbeat"), two.until("/heartbeat"))
        assert one.paths() == two.paths() == ["/register", "/heartbeat"]
        worker.draining = True
        changes.announce()
        await asyncio.gather(one.until("/heartbeat", 2), two.until("/heartbeat", 2))
        assert one.calls[-1][1]["draining"] is True
        hurry(registration, 2.0)
        await registration.close()
        assert one.paths()[-1] == two.paths()[-1] == "/deregister"
        await registration.close()
    silent.close()


async def test_a_new_adapter_is_registered_at_once() -> None:
    worker, changes = Worker(), Changes()
    async with serving(Master(60.0)) as master:
        registration = Registration([worker], [master.url], 30.0, changes)
        registration.start()
        await master.until("/heartbeat")
        worker.adapters = {"a": "revision"}
        changes.announce()
        await master.until("/register", 2)
        told = [body.get("adapters", []) for path, body, _ in master.calls if path == "/register"]
        assert told == [[], ["a"]]
        bodies = [body for path, body, _ in master.calls if path == "/register"]
        registry, lives = Registry(MasterConfig()), set()
        for body in bodies:
            registry.register(msgspec.convert(body, InstanceInfo), 0.0)
            lives.add(registry.instances["w"])
        assert len(lives) == 1, "it is no restart"
        changes.announce()
        await master.until("/heartbeat", 4)
        assert master.paths().count("/register") == 2
        await registration.close()


async def test_beats_keep_to_a_third_of_the_lease_and_a_forgetful_master_hears_all_again() -> None:
    async with serving(Master(0.3)) as master:
        registration = Registration([Worker()], [master.url], 30.0)
        registration.start()
        await master.until("/heartbeat", 6)
        times = [at for _, _, at in master.calls]
        gaps = [b - a for a, b in pairwise(times[1:])]
        assert min(gaps) < 0.15
        master.known = False
        await master.until("/register", 2)
        await registration.close()


async def test_a_worker_that_a_master_drains_says_so_to_all_and_to_those_that_start_later() -> None:
    worker = Worker()
    async with serving(Master(0.3)) as one, serving(Master(0.3)) as two:
        registration = Registration([worker], [one.url, two.url], 30.0)
        registration.start()
        await asyncio.gather(one.until("/heartbeat"), two.until("/heartbeat"))
        assert not any(body.get("draining") for _, body, _ in one.calls + two.calls)
        one.drained = True
        await one.until("/heartbeat", one.paths().count("/heartbeat") + 2)
        assert worker.draining
        one.drained = one.known = two.known = False  # they have lost all they knew
        heard = [(master, master.paths().count("/heartbeat")) for master in (one, two)]
        for master, count in heard:
            await master.until("/heartbeat", count + 2)
            assert master.calls[-1][1]["draining"] is True
        await registration.close()


async def test_masters_that_hang_keep_no_worker_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    hanging = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    async with serving(Master(60.0)) as master:
        workers = Registration([Worker() for _ in range(50)], [hanging, master.url], 30.0)
        workers.start()
        await master.until("/heartbeat", 50)
        assert master.paths().count("/register") == 50
        hurry(workers, 3.0)
        await workers.close()
    silent.close()
    assert not any(master.url in record.getMessage() for record in caplog.records)


async def test_an_error_does_not_end_a_registration() -> None:
    class Frail(Worker):
        asked = 0

        async def info(self) -> InstanceInfo:
            self.asked += 1
            if self.asked == 1:
                raise OverflowError("int too large")
            return await super().info()

    async with serving(Master(60.0)) as master:
        registration = Registration([Frail()], [master.url], 30.0)
        registration.start()
        await master.until("/heartbeat")
        await registration.close()


@pytest.mark.parametrize("failed", [False, True])
async def test_a_worker_says_whether_it_means_to_leave(failed: bool) -> None:
    worker = Worker()
    async with serving(Master(60.0)) as master:
        registration = Registration([worker], [master.url], 30.0)
        registration.start()
        await master.until("/heartbeat")
        worker.failed = failed
        await registration.close()
        path, body, _ = master.calls[-1]
        assert path == "/deregister" and body.get("failed", False) == failed


async def test_a_worker_that_a_master_takes_back_says_so() -> None:
    worker = Worker()
    async with serving(Master(0.3)) as master:
        registration = Registration([worker], [master.url], 30.0)
        registration.start()
        master.drained = True
        await master.until("/heartbeat", 3)
        assert worker.draining
        master.drained, master.resumed = False, True
        seen = master.paths().count("/heartbeat")
        await master.until("/heartbeat", seen + 3)
        assert not worker.draining and not master.calls[-1][1].get("draining", False)
        await registration.close()


async def test_a_worker_hears_no_echo_of_a_drain_that_it_has_ended() -> None:
    """The answer to a beat that said so comes after the drain was taken back."""
    worker = Worker()
    async with serving(Master(0.3)) as master:
        registration = Registration([worker], [master.url], 30.0)
        worker.draining = True
        beat = await worker.heartbeat()
        master.drained = True

        async def said() -> Heartbeat:
            worker.draining = False
            return beat

        worker.heartbeat = said  # type: ignore[method-assign]
        registration.start()
        await master.until("/heartbeat", 3)
        assert not worker.draining
        await registration.close()


async def test_the_first_master_that_knows_a_worker_says_which_role_it_serves() -> None:
    """Masters that do not know of each other may not agree."""
    worker, changes = Worker(), Changes()
    async with serving(Master(60.0)) as one, serving(Master(60.0)) as two:
        one.role, two.role = "prefill", "encode"
        masters = ["http://127.0.0.1:9", one.url, two.url]
        registration = Registration([worker], masters, 0.05, changes)
        registration.start()
        await asyncio.gather(one.until("/heartbeat", 3), two.until("/heartbeat", 3))
        assert worker.role == "prefill"
        one.known = one.knows = False
        await one.until("/register", 3)
        await two.until("/heartbeat", two.paths().count("/heartbeat") + 2)
        assert worker.role == "encode", "it is the next one's turn"
        await registration.close()
