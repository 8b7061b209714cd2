"""Workers added by hand, on real servers: some answer, some hang, some are somebody else by now."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from protocol.errors import InvalidRequest, UpstreamError
from protocol.registry import InstanceInfo, InstanceName, Suspected
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.fleet.added_workers import ProbedInstance
from services.master.probing import client as probe_client
from services.master.probing.client import ProbeClient
from services.master.probing.prober import Prober
from tests.support.shortage import no_files_left
from tests.support.waiting import eventually


class Worker:
    """Answers as vLLM does, unless it is not `healthy` or another `answer` is given."""

    def __init__(self) -> None:
        self.healthy = True
        self.answer = b'{"data": [{"id": "first"}]}'
        self.metrics_text = b""
        self.url = ""

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics_text)

    async def models(self, request: web.Request) -> web.Response:
        return web.Response(body=self.answer)


@contextlib.asynccontextmanager
async def serving() -> AsyncGenerator[Worker, None]:
    worker, app = Worker(), web.Application()
    app.router.add_get("/health", worker.health)
    app.router.add_get("/v1/models", worker.models)
    app.router.add_get("/metrics", worker.metrics)
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
    kept = []  # Python 3.13 closes the connection of a writer that is collected
    server = await asyncio.start_server(lambda _, writer: kept.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in kept:
            writer.close()


@contextlib.asynccontextmanager
async def probing_with(**config: Any) -> AsyncGenerator[MasterService, None]:
    settings = {"probe_interval": 0.02, "probe_timeout": 10.0, "probe_failures": 2, **config}
    service = MasterService(MasterConfig(**settings))
    async with service.running():
        yield service


def body(url: str, **fields: Any) -> ProbedInstance:
    return ProbedInstance("decode", url, **fields)


def known(service: MasterService) -> dict[str, InstanceInfo]:
    instances = service.master.registry.instances
    return {name: instance.info for name, instance in instances.items()}


def state(service: MasterService, worker: ProbedInstance) -> Any:
    (found,) = [shown for shown in service.added.list() if shown["url"] == worker.url]
    return found


async def test_any_number_that_hangs_leaves_the_healthy_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_client, "_AT_ONCE", 8)
    async with hanging() as deaf, serving() as worker, probing_with(probe_timeout=0.3) as service:
        for number in range(20):
            service.add_instance(body(f"{deaf}/{number}", model="m"))
        service.add_instance(body(worker.url, model="m"))
        await eventually(
            lambda: all(
                one.failures >= 2 for one in service.added.all() if deaf in one.instance.url
            )
        )
        # A slow machine may have made it late too.
        await eventually(lambda: state(service, body(worker.url))["failures"] == 0)
        assert [info.url for info in known(service).values()] == [worker.url]
        assert state(service, body(worker.url))["healthy"]


async def test_a_worker_is_probed_as_soon_as_it_is_added() -> None:
    async with serving() as first, serving() as worker, probing_with(probe_interval=3600.0) as one:
        for url in (first.url, worker.url):
            one.add_instance(body(url, model="m"))
            await eventually(lambda url=url: state(one, body(url))["healthy"])


async def test_addresses_that_change_are_taken_over() -> None:
    async with serving() as worker, probing_with() as service:
        for address in ("tcp://127.0.0.1:7001", "tcp://127.0.0.1:7002"):
            added = ProbedInstance("prefill_decode", worker.url, [address], model="m")
            service.add_instance(added)
            await eventually(
                lambda address=address: (
                    [i.ec_zmq_addrs for i in known(service).values()] == [[address]]
                )
            )


async def test_the_block_size_is_what_the_metrics_say_unless_it_was_given() -> None:
    async with serving() as worker, serving() as told, probing_with() as service:
        for one in (worker, told):
            one.metrics_text = (
                b"vllm:num_requests_running 0.0\n"
                b'vllm:cache_config_info{block_size="128",num_gpu_blocks="10"} 1.0\n'
            )
        service.add_instance(body(worker.url))
        service.add_instance(body(told.url, block_size=32))
        await eventually(lambda: len(known(service)) == 2)
        sizes = {info.url: info.block_size for info in known(service).values()}
        assert sizes == {worker.url: 128, told.url: 32}


async def test_suspects_that_hang_do_not_slow_the_others_down() -> None:
    async with hanging() as deaf, serving() as worker, probing_with(probe_timeout=60.0) as service:
        service.add_instance(body(deaf, model="m"))
        service.add_instance(body(worker.url, model="m"))
        await eventually(lambda: state(service, body(worker.url))["healthy"])
        worker.healthy = False
        await eventually(lambda: not known(service))
        assert state(service, body(deaf))["failures"] == 0, "still waiting for its first answer"


async def test_an_address_that_is_none_is_refused_here_and_from_other_masters() -> None:
    async with probing_with() as service, ProbeClient(1.0) as client:
        for url in ("http://a..b", "http://..", "http://" + "a" * 64, "http://h:99999"):
            with pytest.raises(InvalidRequest) as caught:
                service.add_instance(body(url))
            assert caught.value.param == "url"
            with pytest.raises(InvalidRequest):
                service.added.learn(msgspec.json.encode(body(url)), 0.0, fresh=True)
            with pytest.raises(UpstreamError):
                await client.health(url, suspect=False)
        assert service.added.list() == []


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[]", b'{"data": []}', b'{"data": [{"id": null}]}', b'{"data": [{"id": ""}]}',
     b'{"data":' + b"[" * 200_000],
)  # fmt: skip
async def test_a_worker_that_names_no_model_is_not_registered(answer: bytes) -> None:
    async with serving() as worker, probing_with() as service:
        worker.answer = answer
        service.add_instance(body(worker.url))
        await eventually(lambda: state(service, body(worker.url))["failures"] > 1)
        assert known(service) == {}
        assert "names no model" in state(service, body(worker.url))["error"]


async def test_another_model_at_the_same_url_is_known_by_its_own_name() -> None:
    async with serving() as worker, probing_with(probe_failures=1) as service:
        service.add_instance(body(worker.url))
        await eventually(lambda: [i.model for i in known(service).values()] == ["first"])
        (told,) = service.added.bodies().values()
        assert msgspec.json.decode(told).get("model", "") == "", "a guess is not told as if given"
        assert state(service, body(worker.url))["model"] == "first"
        worker.healthy, worker.answer = False, b'{"data": [{"id": "second"}]}'
        await eventually(lambda: not known(service))
        worker.healthy = True
        await eventually(lambda: [i.model for i in known(service).values()] == ["second"])


async def test_a_worker_that_also_registers_itself_speaks_for_itself() -> None:
    async with serving() as worker, probing_with() as service:
        service.add_instance(body(worker.url))
        await eventually(lambda: len(known(service)) == 1)
        changelog = service.master.registry.changelog
        before = changelog.cursor
        itself = InstanceInfo("itself", "decode", worker.url, "first")
        service.register(itself)
        probed = service.added._probed[body(worker.url).name]
        for _ in range(5):
            seen = probed.seen
            await eventually(lambda before=seen: probed.seen > before)
        assert known(service) == {"itself": itself}
        changes = changelog.since(before)
        assert changes == (["itself"], [body(worker.url).name]), "it took the place once"
        assert state(service, body(worker.url))["healthy"]
        service.deregister(InstanceName("itself"))
        await eventually(lambda: list(known(service)) == [body(worker.url).name])


async def test_a_worker_that_a_proxy_could_not_reach_is_asked_at_once() -> None:
    async with serving() as worker, serving() as other, probing_with(probe_interval=60.0) as made:
        for name, one in (("w", worker), ("other", other)):
            made.register(InstanceInfo(name, "decode", one.url, "m", generation="1"))
        assert made.suspect(Suspected("w")).known
        await eventually(lambda: made.suspects.counts["alive"] == 1)
        assert usable(made) == {"w", "other"}, "it answers"
        worker.healthy = False
        assert not made.suspect(Suspected("w", "0")).known, "an older generation"
        assert not made.suspect(Suspected("nobody")).known
        await eventually(lambda: not made.suspect(Suspected("w", "1")) or "w" not in usable(made))
        assert usable(made) == {"other"}
        made.register(InstanceInfo("w", "decode", worker.url, "m", generation="2"))
        assert usable(made) == {"w", "other"}, "it has restarted"


async def test_many_complaints_ask_a_worker_once() -> None:
    async with hanging() as deaf, probing_with(probe_interval=60.0, probe_timeout=0.3) as made:
        made.register(InstanceInfo("w", "decode", deaf, "m"))
        for _ in range(1000):
            made.suspect(Suspected("w"))
        await eventually(lambda: usable(made) == set())
        counts = made.suspects.counts
        assert (counts["told"], counts["skipped"], counts["silent"]) == (1000, 999, 1)


async def test_a_master_without_files_blames_no_worker() -> None:
    async with serving() as worker, probing_with(probe_interval=60.0) as made:
        made.register(InstanceInfo("w", "decode", worker.url, "m", generation="1"))
        with no_files_left():
            made.suspect(Suspected("w"))
            await eventually(lambda: made.suspects.counts["skipped"] == 1)
        assert usable(made) == {"w"} and not made.suspects.counts["silent"]


async def test_a_worker_that_was_not_asked_has_not_failed() -> None:
    async with probing_with(probe_interval=60.0) as service, ProbeClient(1.0) as client:
        service.add_instance(body("http://127.0.0.1:9", model="m"))
        (probed,) = service.added.all()
        await eventually(lambda: probed.failures == 1)
        prober = Prober(service.added, service.config, asyncio.Event())
        with no_files_left():
            await prober._probe(client, probed)
        assert probed.failures == 1
        await prober._probe(client, probed)
        assert probed.failures == 2


def usable(service: MasterService) -> set[str]:
    answer = service.watch.since("")
    return {view.info.instance_id for view in answer.workers if view.usable}


async def test_a_probe_from_before_a_removal_says_nothing_of_who_was_added_since() -> None:
    async with serving() as worker, probing_with(probe_interval=60.0, probe_failures=1) as service:
        service.add_instance(body(worker.url))
        await eventually(lambda: len(known(service)) == 1)
        (before,) = service.added.all()
        service.remove_instance(body(worker.url))
        service.add_instance(body(worker.url))
        await eventually(lambda: len(known(service)) == 1)
        late = time.monotonic() + 2 * service.config.probe_forget
        service.added.failed(before, "no answer", late)
        assert len(known(service)) == 1
        assert state(service, body(worker.url))["healthy"]


async def test_aliases_and_adapters_are_as_the_worker_lists_them() -> None:
    async with serving() as worker, probing_with() as service:
        worker.answer = (
            b'{"data": [{"id": "base", "parent": null}, {"id": "alias"},'
            b' {"id": "lora", "parent": "base"}]}'
        )
        service.add_instance(body(worker.url))
        await eventually(lambda: len(known(service)) == 1)
        (info,) = known(service).values()
        assert (info.model, info.aliases, info.adapters) == ("base", ["alias"], ["lora"])
        worker.answer = b'{"data": [{"id": "base"}, {"id": "lora2", "parent": "base"}]}'
        await eventually(lambda: [i.adapters for i in known(service).values()] == [["lora2"]])
        (info,) = known(service).values()
        assert (info.model, info.aliases) == ("base", [])
