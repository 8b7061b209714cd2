"""The fleet of a proxy as masters come and go. They are real ones, in this process; workers are
only told of, unless they are asked how they are."""

import asyncio
import time

import msgspec
import pytest
from aiohttp import web

from protocol.generate import GENERATE_PATH, RENDER_PATH
from protocol.registry import Drain, InstanceInfo, InstanceName
from protocol.types import Role
from proxy.fleet.fleet import Fleet, NoWorker
from proxy.fleet.fleet_watcher import FleetWatcher
from proxy.fleet.own_model import OwnModel, OwnModels
from proxy.fleet.probing import probe_once
from proxy.fleet.worker import Instance
from services.master.fleet.added_workers import decode_probed
from tests.support.live_masters import running
from tests.support.probed_workers import OURS, Worker, serving

ENCODER, DECODER = "http://127.0.0.1:1", "http://127.0.0.1:2"


def usable(fleet: Fleet) -> dict[str, list[str]]:
    roles: tuple[Role, ...] = ("encode", "prefill", "decode")
    return {role: [i.url for i in fleet.usable(role)] for role in roles if fleet.by_role[role]}


async def test_a_master_and_workers_that_began_anew_are_the_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the ports they had. What the names of their former lives are gone for is not theirs."""
    monkeypatch.setattr("proxy.fleet.fleet_watcher._ORPHAN_S", 0.0)
    async with running() as ((master,), link, _):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("e1", "encode", ENCODER)
        master.tell_of("d1", "decode", DECODER)
        assert await following.once(0.0)
        before = usable(fleet)
        assert before == {"encode": [ENCODER], "decode": [DECODER]}
        await master.stop()
        assert not await following.once(0.0)
        await master.start()
        master.tell_of("e2", "encode", ENCODER)
        master.tell_of("d2", "decode", DECODER)
        for _ in range(3):
            assert await following.once(0.0)
            assert usable(fleet) == before
        assert following.by_id.keys() == {"e2", "d2"}
        master.forget("e2")
        assert await following.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]} and following.by_id.keys() == {"d2"}


async def test_a_worker_that_a_new_master_does_not_hear_of_is_probed_then_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as ((master,), link, _):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("d1", "decode", DECODER)
        await following.once(0.0)
        assert list(fleet.to_probe()) == []
        await master.stop()
        await following.once(0.0)
        assert [i.url for i in fleet.to_probe()] == [DECODER]
        await master.start()
        await following.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]}
        assert [i.url for i in fleet.to_probe()] == [DECODER]
        monkeypatch.setattr("proxy.fleet.fleet_watcher._ORPHAN_S", 0.0)
        await following.once(0.0)
        assert fleet.all() == [] and not following.by_id


async def test_where_embeddings_are_pushed_to_is_as_the_master_says_or_as_a_flag_does() -> None:
    async with running() as ((master,), link, _):
        fleet = Fleet.from_urls("", "", DECODER)
        fleet.decode[0].ec_zmq_addrs = ("tcp://flag:1",)
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("d1", "decode", DECODER)
        body = {"role": "prefill_decode", "url": "http://d2:1", "ec_zmq_addrs": "tcp://d2:1"}
        added = decode_probed(msgspec.json.encode(body)).info("m", 16)
        master.service.register(added)
        await following.once(0.0)
        told = {worker.url: worker.ec_zmq_addrs for worker in fleet.decode}
        assert told == {DECODER: ("tcp://flag:1",), "http://d2:1": ("tcp://d2:1",)}
        assert fleet.pushed_to


async def test_a_listed_worker_stays_even_if_a_master_drops_it() -> None:
    """Once it has left a probe brings it back, and it drains no more."""
    async with running() as ((master,), link, _):
        fleet = Fleet.from_urls("", "", DECODER)
        (worker,) = fleet.decode
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("d1", "decode", DECODER + "/")
        master.service.drain(Drain("d1"))
        await following.once(0.0)
        assert fleet.decode == [worker] and worker.draining and worker.known_to_master
        master.forget("d1")
        await following.once(0.0)
        assert fleet.decode == [worker] and not worker.up
        worker.answered()
        assert worker.usable(time.monotonic())


async def test_a_worker_that_a_master_drains_gets_nothing_once_the_master_is_away() -> None:
    """It does not know of it itself."""
    async with (
        serving(Worker({**OURS, "/ready": {}})) as worker,
        running() as ((master,), link, client),
    ):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("d1", "decode", worker.url)
        master.service.drain(Drain("d1"))
        await following.once(0.0)
        await master.stop()
        await following.once(0.0)
        await probe_once(fleet, client)
        assert worker.asked and fleet.decode[0].up and not fleet.usable("decode")


async def test_a_role_is_given_up_if_its_last_worker_left_on_purpose() -> None:
    """It deregistered, or was drained before; not if its lease lapsed, or its engine ended."""
    async with running() as ((master,), link, _):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])

        def lapse(name: str) -> None:
            registry = master.service.master.registry
            registry.instances[name].lease_until = 0.0
            registry.expire(1.0)

        def fail(name: str) -> None:
            master.service.deregister(InstanceName(name, failed=True))

        master.tell_of("e1", "encode", ENCODER)
        master.tell_of("d1", "decode", DECODER)
        for go in (master.forget, lapse, fail):
            master.tell_of("p1", "prefill", "http://127.0.0.1:3")
            await following.once(0.0)
            assert fleet.roles == {"encode", "prefill", "decode"}
            go("p1")
            await following.once(0.0)
            assert fleet.roles - {"prefill"} == {"encode", "decode"} and not fleet.prefill
            assert ("prefill" in fleet.roles) == (go != master.forget)
        master.service.drain(Drain("e1"))
        await following.once(0.0)
        lapse("e1")
        await following.once(0.0)
        assert fleet.roles == {"prefill", "decode"}


async def test_a_worker_that_becomes_another_is_followed() -> None:
    """In another role, with another model."""
    async with running() as ((master,), link, _):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        master.tell_of("w", "prefill", DECODER)
        await following.once(0.0)
        master.tell_of("w", "decode", DECODER)
        await following.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]}
        first = fleet.decode[0]
        master.tell_of("w", "decode", DECODER, generation="2")
        await following.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]} and fleet.decode[0] is not first
        master.tell_of("e", "encode", ENCODER)
        master.service.register(InstanceInfo("w", "decode", DECODER, "another", "3"))
        await following.once(0.0)
        assert fleet.decode == [] and following.by_id.keys() == {"e"}


async def test_a_worker_that_left_in_silence_is_given_up_after_one_more() -> None:
    """One that answers its probe keeps its calls."""
    quiet = asyncio.Event()

    async def health(request: web.Request) -> web.Response:
        if quiet.is_set():
            await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = "http://{}:{}".format(*runner.addresses[0][:2])
    async with running() as ((master,), link, client):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        held: list[Instance] = []
        for silent in (False, True):
            master.tell_of("d", "decode", url)
            await following.once(0.0)
            (worker,) = fleet.decode
            held.append(worker)
            worker.in_flight = 1
            master.service.master.expire(time.monotonic() + 60)
            await following.once(0.0)
            assert fleet.decode == []
            if silent:
                quiet.set()
                client._probe_timeout = 0.2
            await probe_once(fleet, client)
            assert worker.lost == silent
        assert held[0] is not held[1]
    await runner.cleanup()


async def test_a_worker_of_another_engine_is_asked_what_it_can_resume() -> None:
    """No master says that; what it does say holds."""
    theirs = Worker({"/health": {}, RENDER_PATH: 400, GENERATE_PATH: 400})
    async with serving(theirs) as worker, running() as ((master,), link, client):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        told = InstanceInfo("d", "decode", worker.url, "m", dialect="openai", max_running=7)
        master.service.register(told)
        await following.once(0.0)
        fleet.watched = True
        (instance,) = fleet.decode
        assert list(fleet.to_probe()) == [instance]
        await probe_once(fleet, client)
        assert (instance.resumes, instance.known, instance.max_running) == (True, True, 7)
        assert list(fleet.to_probe()) == []


async def test_the_kind_of_a_workers_kv_is_what_the_master_says() -> None:
    async with running() as ((master,), link, _):
        fleet = Fleet()
        watcher = FleetWatcher(link, fleet, ["m"])
        for kind in ("m:bf16", "m:int8"):
            kv = {"triptych": {"compatibility": kind}}
            master.service.register(InstanceInfo("d", "decode", DECODER, "m", kv_endpoint=kv))
            await watcher.once(0.0)
            assert [decode.kv_compatibility for decode in fleet.decode] == [kind]


async def test_a_name_that_no_worker_serves_is_an_alias_of_the_one_model_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running() as ((master,), link, _):
        fleet = Fleet()
        watcher = FleetWatcher(link, fleet, ["nice-name", "other"])
        assert watcher.asked_for("nice-name") == "nice-name"
        master.tell_of("d1", "decode", DECODER)
        assert await watcher.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]}
        assert (watcher.model, watcher.asked_for("nice-name")) == ("m", "m")
        assert watcher.asked_for("a-lora") == "a-lora"
    assert "all workers serve m: nice-name is an alias of it" in caplog.messages


async def test_of_several_models_only_the_named_one_is_this_proxys() -> None:
    async with running() as ((master,), link, _):
        fleet, unnamed = Fleet(), Fleet()
        watcher = FleetWatcher(link, fleet, ["m"])
        lost = FleetWatcher(link, unnamed, ["nice-name"])
        master.tell_of("d1", "decode", DECODER)
        master.service.register(InstanceInfo("x", "decode", ENCODER, "another"))
        for one in (watcher, lost):
            assert await one.once(0.0)
        assert usable(fleet) == {"decode": [DECODER]}
        assert usable(unnamed) == {} and lost.model == ""


async def test_an_alias_returns_when_the_other_model_has_left() -> None:
    async with running() as ((master,), link, _):
        fleet = Fleet()
        watcher = FleetWatcher(link, fleet, ["nice-name"])
        master.tell_of("d1", "decode", DECODER)
        master.service.register(InstanceInfo("x", "decode", ENCODER, "another"))
        assert await watcher.once(0.0)
        assert (watcher.model, fleet.unserved) == ("", ("another", "m"))
        master.forget("x")
        assert await watcher.once(0.0)
        assert (watcher.model, fleet.unserved) == ("m", ())
        assert usable(fleet) == {"decode": [DECODER]}


async def test_an_alias_ends_when_the_named_model_comes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running() as ((master,), link, _):
        fleet = Fleet()
        watcher = FleetWatcher(link, fleet, ["named"])
        master.tell_of("d1", "decode", DECODER)
        assert await watcher.once(0.0) and watcher.model == "m"
        master.service.register(InstanceInfo("x", "decode", ENCODER, "named"))
        caplog.clear()
        assert await watcher.once(0.0) and watcher.model == "named"
        assert usable(fleet) == {"decode": [ENCODER]}
    assert not any("alias" in message for message in caplog.messages)


async def test_a_worker_that_changes_its_role_is_in_the_other_list_and_keeps_its_calls() -> None:
    async with running() as ((master,), link, _):
        fleet = Fleet()
        following = FleetWatcher(link, fleet, ["m"])
        info = InstanceInfo("a", "decode", DECODER, "m", "1", roles=["decode", "encode"])
        master.service.register(info)
        await following.once(0.0)
        (worker,) = fleet.decode
        with worker.serving():
            master.service.move("a", "encode")
            await following.once(0.0)
            assert usable(fleet) == {"encode": [DECODER]} and not fleet.decode
            assert fleet.encode == [worker] and worker.in_flight == 1
        assert worker.up and not worker.removed and not worker.late_probes
        assert following.by_id == {"a": worker}


async def test_without_an_encoder_pictures_go_where_one_could_be() -> None:
    """So that a fleet whose master is away goes on."""
    fleet = Fleet()
    plain, able = fleet.add(ENCODER, "prefill"), fleet.add(DECODER, "decode")
    with pytest.raises(NoWorker):
        fleet.by_content("p")
    able.changes_role = True
    assert {fleet.by_content(f"p{number}") for number in range(20)} == {able}
    assert plain in fleet.prefill


async def test_of_several_rendered_models_all_workers_are_this_proxys() -> None:
    """But for those of others; a master is asked by the name that workers give."""
    async with running() as ((master,), link, _):
        fleet = Fleet(own=OwnModels(OwnModel(("nice", "b")), OwnModel(("c",))))
        watcher = FleetWatcher(link, fleet)
        first = InstanceInfo(
            "x", "decode", DECODER, "b", adapters=["l"], adapter_revisions={"l": "r"}
        )
        master.service.register(first)
        master.service.register(InstanceInfo("y", "encode", ENCODER, "/models/c", aliases=["c"]))
        master.service.register(InstanceInfo("z", "prefill", "http://127.0.0.1:3", "another"))
        assert await watcher.once(0.0)
        assert usable(fleet) == {"decode": [DECODER], "encode": [ENCODER]}
        assert [one.rendered for one in fleet.all()] == ["c", "nice"]
        assert fleet.unserved == ("another",)
        asked = {name: watcher.asked_for(name) for name in ("nice", "c", "l")}
        assert asked == {"nice": "b", "c": "/models/c", "l": "l"}
        assert fleet.models.adapters_with("nice") == {"l": "r"}
        master.service.deregister(InstanceName("x"))
        assert await watcher.once(0.0)
        assert usable(fleet) == {"encode": [ENCODER]} and not fleet.usable("decode", (), "nice")
        assert watcher.asked_for("nice") == "nice"
