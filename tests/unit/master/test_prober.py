"""Workers added by hand, on real servers: some answer, some hang, some are somebody else by now."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from protocol.errors import InvalidRequest, UpstreamError
from protocol.registry import InstanceInfo, InstanceName
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.fleet import probe_client
from services.master.fleet.probe_client import ProbeClient
from services.master.fleet.prober import ProbedInstance, Prober
from tests.support.waiting import eventually


class Worker:
    """Answers as vLLM does, unless it is not `healthy` or another `answer` is given."""

    def __init__(self) -> None:
        self.healthy = True
        self.answer = b'{"data": [{"id": "first"}]}'
        self.url = ""

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, request: web.Request) -> web.Response:
        return web.Response(body=self.answer)


@contextlib.asynccontextmanager
async def serving() -> AsyncGenerator[Worker, None]:
    worker, app = Worker(), web.Application()
    app.router.add_get("/health", worker.health)
    app.router.add_get("/v1/models", worker.models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    worker.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield worker
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def hanging() -> AsyncGenerator[str, None]:
    """Takes connections and says nothing."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@contextlib.asynccontextmanager
async def probing_with(**config: Any) -> AsyncGenerator[Prober, None]:
    settings = {"probe_interval": 0.02, "probe_timeout": 0.3, "probe_failures": 2, **config}
    prober = Prober(service := MasterService(MasterConfig(**settings)), service.config)
    task = asyncio.create_task(prober.run())
    try:
        yield prober
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def body(url: str, **fields: Any) -> ProbedInstance:
    return ProbedInstance("decode", url, **fields)


def known(prober: Prober) -> dict[str, InstanceInfo]:
    instances = prober.service.master.registry.instances
    return {name: instance.info for name, instance in instances.items()}


def state(prober: Prober, worker: ProbedInstance) -> Any:
    (found,) = [shown for shown in prober.list() if shown["url"] == worker.url]
    return found


async def test_any_number_that_hangs_leaves_the_healthy_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_client, "_AT_ONCE", 8)
    async with hanging() as deaf, serving() as worker, probing_with() as prober:
        for number in range(20):
            prober.add(body(f"{deaf}/{number}", model="m"))
        prober.add(body(worker.url, model="m"))
        await eventually(lambda: all(s["failures"] >= 2 for s in prober.list() if deaf in s["url"]))
        assert [info.url for info in known(prober).values()] == [worker.url]
        shown = state(prober, body(worker.url))
        assert (shown["healthy"], shown["failures"]) == (True, 0)


async def test_suspects_that_hang_do_not_slow_the_others_down() -> None:
    async with hanging() as deaf, serving() as worker, probing_with(probe_timeout=5.0) as prober:
        prober.add(body(deaf, model="m"))
        prober.add(body(worker.url, model="m"))
        await eventually(lambda: state(prober, body(worker.url))["healthy"])
        worker.healthy = False
        await eventually(lambda: not known(prober))
        assert state(prober, body(deaf))["failures"] == 0, "still waiting for its first answer"


async def test_an_address_that_is_none_is_refused_here_and_from_other_masters() -> None:
    async with probing_with() as prober, ProbeClient(1.0) as client:
        for url in ("http://a..b", "http://..", "http://" + "a" * 64, "http://h:99999"):
            with pytest.raises(InvalidRequest) as caught:
                prober.add(body(url))
            assert caught.value.param == "url"
            with pytest.raises(InvalidRequest):
                prober.learn(msgspec.json.encode(body(url)), fresh=True)
            with pytest.raises(UpstreamError):
                await client.health(url, suspect=False)
        assert prober.list() == []


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[]", b'{"data": []}', b'{"data": [{"id": null}]}', b'{"data": [{"id": ""}]}',
     b'{"data":' + b"[" * 200_000],
)  # fmt: skip
async def test_a_worker_that_names_no_model_is_not_registered(answer: bytes) -> None:
    async with serving() as worker, probing_with() as prober:
        worker.answer = answer
        prober.add(body(worker.url))
        await eventually(lambda: state(prober, body(worker.url))["failures"] > 1)
        assert known(prober) == {}
        assert "names no model" in state(prober, body(worker.url))["error"]


async def test_another_model_at_the_same_url_is_known_by_its_own_name() -> None:
    async with serving() as worker, probing_with(probe_failures=1) as prober:
        prober.add(body(worker.url))
        await eventually(lambda: [i.model for i in known(prober).values()] == ["first"])
        (told,) = prober.bodies().values()
        assert msgspec.json.decode(told).get("model", "") == "", "a guess is not told as if given"
        assert state(prober, body(worker.url))["model"] == "first"
        worker.healthy, worker.answer = False, b'{"data": [{"id": "second"}]}'
        await eventually(lambda: not known(prober))
        worker.healthy = True
        await eventually(lambda: [i.model for i in known(prober).values()] == ["second"])


async def test_a_worker_that_also_registers_itself_speaks_for_itself() -> None:
    async with serving() as worker, probing_with() as prober:
        prober.add(body(worker.url))
        await eventually(lambda: len(known(prober)) == 1)
        left: list[str] = []
        prober.service.master.registry.left = lambda info: left.append(info.instance_id)
        itself = InstanceInfo("itself", "decode", worker.url, "first")
        prober.service.register(itself)
        probed = prober._probed[body(worker.url).name]
        for _ in range(5):
            seen = probed.seen
            await eventually(lambda before=seen: probed.seen > before)
        assert known(prober) == {"itself": itself}
        assert left == [body(worker.url).name], "once, for the one that can say more"
        assert state(prober, body(worker.url))["healthy"]
        prober.service.deregister(InstanceName("itself"))
        await eventually(lambda: list(known(prober)) == [body(worker.url).name])
