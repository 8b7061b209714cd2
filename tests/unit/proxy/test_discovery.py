"""What a proxy learns of a worker from what the worker says of itself, against real HTTP."""

from typing import Any, cast

import pytest

from protocol.generate import GENERATE_PATH, RENDER_PATH
from proxy.fleet.discovery import learn_adapters
from proxy.fleet.probing import probe_once
from proxy.fleet.worker import Instance
from proxy.placement.own_view import Room
from proxy.upstream.client import UpstreamClient
from tests.support.probed_workers import (
    OURS,
    PATIENT_S,
    SHORT_S,
    THEIRS,
    Worker,
    asking,
    decoding,
    serving,
)


async def test_a_worker_that_is_late_to_say_what_it_is_is_asked_again() -> None:
    """And gets no requests until then: it could not make anything of them."""
    async with serving(Worker(OURS)) as worker, asking(patience_s=SHORT_S) as client:
        fleet, (instance,) = decoding(worker.url)
        worker.silent = {"/server_info"}
        await probe_once(fleet, client)
        assert (instance.up, instance.known, fleet.relayed) == (False, False, "none")
        client._probe_timeout = PATIENT_S
        worker.silent, worker.answers["/server_info"] = set(), 503
        await probe_once(fleet, client)
        assert (instance.known, instance.dialect, instance.up) == (False, None, False)
        worker.answers["/server_info"] = OURS["/server_info"]
        await probe_once(fleet, client)
        assert (instance.known, instance.dialect, fleet.relayed) == (True, "tokens", "none")
        assert instance.up
        assert (instance.kv_endpoint or {})["remote_port"] == 1 and instance.block_size == 16
        assert instance.kv_compatibility == "m:bf16"


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params"])
@pytest.mark.parametrize("host", ["a:0;b", "*", 5, ["a"]])
async def test_an_endpoint_that_is_no_host_is_told_to_no_other_worker(
    field: str, host: Any
) -> None:
    key = "remote_host" if field.startswith("kv") else "peer_host"
    info = {**OURS["/server_info"], field: {key: host}}
    async with serving(Worker({**OURS, "/server_info": info})) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        assert instance.up
        found = instance.kv_endpoint if field.startswith("kv") else instance.ec_endpoint
        assert found is None


@pytest.mark.parametrize("owner", ["vllm", "triptych", None, 5, ["vllm"]])
async def test_another_engine_is_not_asked_what_takes_it_seconds(owner: Any) -> None:
    """vLLM gathers its environment for the first /server_info."""
    foreign = owner == "vllm"
    models = {"/v1/models": {"data": [{"id": "m", "owned_by": owner}]}}
    theirs = Worker({"/health": {}, **models, "/server_info": {"vllm_config": "…"}})
    theirs.silent = {"/server_info"} if foreign else set()
    async with serving(theirs) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        assert (instance.up, instance.dialect, instance.known) == (True, "openai", True)
        assert ("/server_info" in worker.asked) is not foreign


async def test_a_forced_dialect_waits_for_the_rest_too() -> None:
    async with serving(Worker(OURS)) as worker, asking(patience_s=SHORT_S) as client:
        fleet, (instance,) = decoding(worker.url)
        fleet.force_dialect("tokens")
        worker.silent = {"/server_info"}
        await probe_once(fleet, client)
        worker.silent, client._probe_timeout = set(), PATIENT_S
        await probe_once(fleet, client)
        assert instance.max_running == 24 and instance.kv_compatibility == "m:bf16"


async def test_a_worker_says_how_much_it_runs_at_once() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, _ = decoding(worker.url)
        assert Room(fleet, 0).requests == 256
        await probe_once(fleet, client)
        assert Room(fleet, 0).requests == 48 and Room(fleet, 10).requests == 10
        assert not Room(fleet, 0).none_up
        fleet.lose(fleet.decode[0], "its connection broke")
        assert Room(fleet, 0).none_up


@pytest.mark.parametrize(
    "said", [b'{"a":"\xff"}', b'{"a":' * 100_000, b"[1]", b"", b"<html>", 404, 405]
)
async def test_who_says_nothing_of_use_is_taken_for_another_engine(said: Any) -> None:
    """Nothing that it says ends the probing of others."""
    bad = Worker({**OURS, "/server_info": said})
    async with serving(bad), serving(Worker(OURS)) as good, asking() as client:
        fleet, (one, other) = decoding(bad.url, good.url)
        other.up = False
        await probe_once(fleet, client)
        assert (one.up, one.dialect) == (True, "openai"), one.cause
        assert (other.up, other.dialect) == (True, "tokens")


async def test_the_workers_key_opens_what_it_guards() -> None:
    """vLLM asks for its key under /v1 alone."""
    guarded = Worker(THEIRS)
    guarded.key = "secret"
    for key, resumes in (("", False), ("Bearer wrong", False), ("Bearer secret", True)):
        async with serving(guarded), asking(key) as client:
            guarded.answers |= {"/version": {"version": "1"}, RENDER_PATH: 400, GENERATE_PATH: 400}
            fleet, (instance,) = decoding(guarded.url)
            await probe_once(fleet, client)
            assert (instance.up, instance.dialect) == (True, "openai")
            assert instance.resumes is resumes


@pytest.mark.parametrize(
    ("render", "generate", "resumes"),
    [(400, 400, True), (422, 400, False), (400, 404, False), (404, 400, False), (403, 403, False),
     (405, 405, False), (500, 500, False), (401, 401, False), ({}, {}, False)],
)  # fmt: skip
async def test_who_can_go_on_with_others_streams(render: Any, generate: Any, resumes: bool) -> None:
    routes = {RENDER_PATH: render, GENERATE_PATH: generate}
    async with serving(Worker({**THEIRS, **routes})) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        assert instance.known and (instance.resumes, fleet.resumers) == (resumes, int(resumes))
        asked = len(worker.asked)
        await probe_once(fleet, client)
        assert len(worker.asked) == asked + 1  # it is asked that once in its life
        instance.draining = True
        fleet.news()
        assert fleet.resumers == 0


async def test_who_does_not_say_in_time_whether_it_can_is_asked_again() -> None:
    routes = {RENDER_PATH: 400, GENERATE_PATH: 400}
    async with (
        serving(Worker({**THEIRS, **routes})) as worker,
        asking(patience_s=SHORT_S) as client,
    ):
        fleet, (instance,) = decoding(worker.url)
        worker.silent = {GENERATE_PATH}
        await probe_once(fleet, client)
        assert (instance.up, instance.dialect, instance.resumes) == (True, "openai", False)
        worker.silent, client._probe_timeout = set(), PATIENT_S
        await probe_once(fleet, client)
        assert (instance.known, instance.resumes, fleet.resumers) == (True, True, 1)


async def test_our_own_workers_are_not_asked_that() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        assert not instance.resumes and not {RENDER_PATH, GENERATE_PATH} & set(worker.asked)


async def test_adapters_that_others_have_loaded_become_known() -> None:
    """Another process of the proxy, or an operator at the worker itself."""
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        assert instance.known and not instance.adapters
        for adapters in ({"a": "r"}, {"b": "s"}):
            worker.answers["/server_info"] = {**OURS["/server_info"], "adapters": adapters}
            for _ in range(5):
                await probe_once(fleet, client)
            assert fleet.models.adapters == adapters
            assert instance.models == {"m", *adapters}
        worker.answers["/server_info"] = 503
        for _ in range(5):
            await probe_once(fleet, client)
        assert fleet.models.adapters == {"b": "s"}


async def test_an_answer_from_before_a_load_does_not_forget_the_adapter() -> None:
    """It was asked for before the load, and comes after what the load had told."""
    worker = Instance("http://d:1", "decode", known=True, models=frozenset({"m"}))

    class Late:
        async def get(self, url: str) -> bytes:
            worker.adapters, worker.models = {"b": "r"}, frozenset({"m", "b"})
            return b'{"adapters": {}}'

    await learn_adapters(cast(UpstreamClient, Late()), worker)
    assert worker.adapters == {"b": "r"} and worker.models == {"m", "b"}
