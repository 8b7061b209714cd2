"""Answers from an address that another instance, or something else, has by now."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from protocol.errors import ModelNotFound, TriptychError
from proxy.fleet.fleet import Fleet
from proxy.fleet.probing import probe_once
from proxy.fleet.worker import Instance
from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import CallFailed, failure_of
from proxy.upstream.patience import Patience
from tests.support.probed_workers import OURS, Worker, serving


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(2.0, probe_timeout_s=20.0)
    async with asyncio.timeout(30):
        yield client
    await client.close()


async def probed(client: UpstreamClient, worker: Worker) -> Instance:
    """What a proxy knows of it once it has asked whose it is and then for its name."""
    fleet = Fleet.from_urls("", "", worker.url)
    for _ in range(2):
        await probe_once(fleet, client)
    return fleet.decode[0]


async def failing(client: UpstreamClient, worker: Worker, instance: Instance, path: str) -> str:
    """The kind of failure of both ways to call it, none if it answers."""
    patience = Patience(time.monotonic() + 20, worker=instance)
    kinds = []
    try:
        await client.post(worker.url + path, b"", {}, patience)
        kinds.append("")
    except TriptychError as error:
        kinds.append(failure_of(error).kind)
    try:
        async for _ in client.stream(worker.url + path, b"", {}, patience):
            pass
    except TriptychError as error:
        kinds.append(failure_of(error).kind)
    return kinds[0] if len(set(kinds)) == 1 else str(kinds)


async def test_what_names_another_instance_or_none_is_the_addresss_failure(
    client: UpstreamClient,
) -> None:
    named = {**OURS, "/ready": b"first", "/missing": 404}
    async with serving(Worker(named)) as worker:
        worker.name = "first"
        worker.end.set()
        instance = await probed(client, worker)
        assert (instance.process, instance.names_itself) == ("first", True)
        for path in ("/missing", "/health"):
            worker.name = "second"
            assert await failing(client, worker, instance, path) == "other_instance"
            worker.name = ""
            assert await failing(client, worker, instance, path) == "other_instance"
        worker.name = "first"
        assert await failing(client, worker, instance, "/missing") != "other_instance"


async def test_it_takes_the_worker_out_of_choice_and_the_request_elsewhere() -> None:
    failure = failure_of(CallFailed("left", "other_instance"))
    assert failure.gone and failure.retry and failure.elsewhere


async def test_a_worker_that_names_nothing_is_believed_as_before(client: UpstreamClient) -> None:
    """An older one, whose 404 is not worth more than any."""
    async with serving(Worker({**OURS, "/ready": b"first", "/missing": 404})) as worker:
        worker.end.set()
        instance = await probed(client, worker)
        assert (instance.process, instance.names_itself) == ("first", False)
        patience = Patience(time.monotonic() + 20, worker=instance)
        assert await client.post(worker.url + "/health", b"", {}, patience) == b"{}"
        assert await failing(client, worker, instance, "/missing") == "other_instance"


async def test_another_life_is_asked_anew_and_believed(client: UpstreamClient) -> None:
    async with serving(Worker({**OURS, "/ready": b"first"})) as worker:
        worker.name = "first"
        fleet = Fleet.from_urls("", "", worker.url)
        await probe_once(fleet, client)
        worker.name = "second"
        worker.answers["/ready"] = b"second"
        await probe_once(fleet, client)
        patience = Patience(time.monotonic() + 20, worker=fleet.decode[0])
        assert await client.post(worker.url + "/health", b"", {}, patience) == b"{}"


@pytest.mark.parametrize(
    ("process", "registered", "name", "fits"),
    [("a", "", "a", True), ("a", "", "b", False), ("", "a", "a", True), ("", "a", "b", False),
     ("old", "a", "a", True), ("", "", "b", True)],
)  # fmt: skip
def test_a_name_is_what_a_probe_or_a_master_has_told(
    process: str, registered: str, name: str, fits: bool
) -> None:
    ours = Instance("http://w", "decode", process=process, instance_id=registered)
    ours.dialect = "tokens"
    assert ours.may_say(name, 200) is fits
    assert ours.may_say("", 200) and not ours.may_say("", 404)


async def test_another_engines_worker_is_taken_at_its_word(client: UpstreamClient) -> None:
    theirs = {"/health": {}, "/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}}
    async with serving(Worker(theirs)) as worker:
        instance = await probed(client, worker)
        assert instance.dialect == "openai"
        assert instance.may_say("", 404) and instance.may_say("x", 200)


def test_a_404_of_the_worker_itself_is_the_requests() -> None:
    assert not failure_of(ModelNotFound("no")).retry
