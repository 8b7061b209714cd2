"""What a proxy makes of its workers' answers to its probes, against real HTTP."""

import asyncio
import socket
import time
from typing import Any

import pytest

from proxy.fleet.fleet import Fleet
from proxy.fleet.probing import probe_first, probe_once, probe_one
from proxy.upstream.failures import CallFailed
from proxy.upstream.patience import Patience
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
from tests.support.shortage import no_files_left
from tests.support.waiting import eventually

HASTY_S = 0.1  # where all who are asked are silent


async def test_the_first_probe_waits_for_who_is_slow_to_say_what_it_is() -> None:
    theirs = Worker({**THEIRS, "/version": {"version": "1"}})
    theirs.silent = {"/server_info"}
    async with (
        serving(theirs) as worker,
        serving(Worker(OURS)) as good,
        asking(patience_s=SHORT_S) as client,
    ):
        fleet, (slow, other) = decoding(worker.url, good.url)
        first = asyncio.create_task(probe_first(fleet, client))
        while not other.known or slow.up:  # noqa: ASYNC110 — what is awaited has no event
            await asyncio.sleep(0.01)
        worker.silent = {"/health", "/server_info"}
        await asyncio.sleep(2 * SHORT_S)
        assert not (slow.up or first.done())
        worker.silent = set()
        await first
        assert slow.up and slow.dialect == "openai"
        assert "--dialect" in slow.cause
        began = time.monotonic()
        gone = fleet.add("http://127.0.0.1:9", "decode")
        worker.silent = {"/v1/models", "/server_info"}
        slow.known, slow.dialect = False, None
        await probe_first(fleet, client, patience_s=0.1)
        assert time.monotonic() - began < 9 and not (gone.up or slow.up)


async def test_a_url_that_cannot_be_asked_leaves_the_others_probed() -> None:
    async with serving(Worker(OURS)) as good, asking() as client:
        fleet, (bad, other) = decoding(f"http://{'a' * 70}.example", good.url)
        other.up = False
        await probe_once(fleet, client)
        assert (bad.up, other.up) == (False, True)


async def test_what_follows_from_a_worker_that_comes_up_follows_at_once() -> None:
    """Also while another one keeps its probe waiting."""
    async with (
        serving(Worker(OURS)) as stuck,
        serving(Worker(OURS)) as good,
        asking() as client,
    ):
        stuck.silent = {"/health"}
        fleet, (_, other) = decoding(stuck.url, good.url)
        other.up = False
        seen: list[bool] = []
        fleet.subscribe(lambda: seen.append(other.up))
        round_ = asyncio.create_task(probe_once(fleet, client))
        await eventually(lambda: bool(seen))
        assert not round_.done() and seen == [True]
        round_.cancel()
        await asyncio.gather(round_, return_exceptions=True)


async def test_a_worker_that_drains_is_passed_over_until_it_restarts() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        worker.answers["/ready"] = {}
        for _ in range(2):
            await probe_once(fleet, client)
        assert fleet.usable("decode") == [instance]
        worker.answers["/ready"] = 503
        await probe_once(fleet, client)
        assert instance.up and instance.draining and fleet.usable("decode") == []
        worker.answers["/health"] = 503
        await probe_once(fleet, client)
        assert not instance.up and not instance.draining
        worker.answers |= {"/ready": {}, "/health": {}}
        await probe_once(fleet, client)
        assert fleet.usable("decode") == [instance]


async def test_a_silent_worker_is_given_up_only_when_it_stays_silent() -> None:
    async with (
        serving(Worker(OURS)) as worker,
        serving(Worker(OURS)) as other,
        asking() as client,
    ):
        fleet, (instance, _) = decoding(worker.url, other.url)
        await probe_once(fleet, client)
        worker.silent, client._probe_timeout = {"/health"}, HASTY_S
        for _ in range(2):
            await probe_one(fleet, client, instance)
        assert (instance.up, instance.lost) == (True, False)
        for _ in range(2):
            await probe_one(fleet, client, instance)
            assert (instance.up, instance.lost, instance.known) == (False, True, False)
        assert instance.cause == "it has been silent for too long"
        worker.silent, client._probe_timeout = set(), PATIENT_S
        await probe_once(fleet, client)
        assert (instance.up, instance.lost, instance.known) == (True, False, True)


async def test_who_cannot_be_replaced_is_waited_for_longer() -> None:
    """If all are silent together, it is rather the machine, or the network, than all of them."""
    async with (
        serving(Worker(OURS)) as one,
        serving(Worker(OURS)) as two,
        asking() as client,
    ):
        fleet, (first, second) = decoding(one.url, two.url)
        await probe_once(fleet, client)
        one.silent = two.silent = {"/health"}
        client._probe_timeout = HASTY_S
        for _ in range(9):
            await probe_once(fleet, client)
            assert first.up and second.up
        two.silent, client._probe_timeout = set(), PATIENT_S
        await probe_one(fleet, client, second)
        client._probe_timeout = HASTY_S
        await probe_one(fleet, client, first)
        assert first.lost and second.up
        two.silent = {"/health"}
        for _ in range(9):
            await probe_once(fleet, client)
            assert second.up
        await probe_once(fleet, client)
        assert second.lost


async def test_computing_workers_replace_each_other_in_both_dialects() -> None:
    for dialect in ("tokens", "openai"):
        fleet = Fleet.from_urls("http://e", "http://p", "http://d")
        fleet.force_dialect(dialect)
        found = [fleet.replaceable(instance) for instance in fleet.all()]
        assert found == [False, True, True]
        fleet.decode[0].late_probes = 1
        assert not fleet.replaceable(fleet.prefill[0])


async def test_a_host_that_takes_no_connection_is_silent_not_refusing() -> None:
    """A power cut: no process answers, and none refuses."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(8)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        async with asking(patience_s=0.1) as client:
            fleet, (instance,) = decoding(f"http://127.0.0.1:{port}")
            for _ in range(10):
                await probe_once(fleet, client)
            assert instance.lost
        for one in held:
            one.close()


async def test_a_suspect_may_be_another_life_of_the_worker() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        worker.answers["/server_info"] = {"dialect": "tokens", "max_num_seqs": 2}
        await probe_once(fleet, client)
        assert instance.max_running == 24, "nothing hints at another life"
        instance.suspect = True
        await probe_once(fleet, client)
        assert (instance.max_running, instance.kv_endpoint) == (2, None)


async def test_a_worker_that_departs_is_watched_while_it_has_calls() -> None:
    """Its stream goes on as long as it answers probes, and is given up once it does not."""
    async with serving(Worker(OURS)) as worker, asking(patience_s=SHORT_S) as client:
        fleet, (instance,) = decoding(worker.url)
        await probe_once(fleet, client)
        patience = Patience(time.monotonic() + 20, answer_s=20, stall_s=20, worker=instance)
        with instance.serving():
            events = client.stream(f"{worker.url}/open", b"", {}, patience)
            assert b"choices" in await anext(events)
            fleet.remove(instance)
            fleet.remove(instance)
            assert fleet.decode == [] and not instance.usable(time.monotonic())
            await probe_once(fleet, client)
            assert not instance.lost and not instance.usable(time.monotonic())
            instance.left()
            worker.silent = {"/health"}
            await probe_once(fleet, client)
            assert instance.lost
            with pytest.raises(CallFailed):
                await anext(events)
        asked = len(worker.asked)
        await probe_once(fleet, client)
        assert len(worker.asked) == asked, "it has no calls any more"


async def test_probing_a_worker_that_was_removed_meanwhile_does_not_bring_it_back() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        fleet.remove(instance)
        await probe_one(fleet, client, instance)
        assert fleet.all() == [] and not instance.usable(time.monotonic())


async def test_a_restart_between_two_probes_is_noticed() -> None:
    """Where it fetches from is another process's by then."""
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        worker.answers |= {"/ready": b"first"}
        for _ in range(2):
            await probe_once(fleet, client)
        told = {**OURS["/server_info"], "kv_transfer_params": {"remote_engine_id": "new"}}
        worker.answers |= {"/ready": b"first", "/server_info": told}
        await probe_once(fleet, client)
        assert instance.kv_endpoint != {"remote_engine_id": "new"}, "nothing hints at a restart"
        worker.answers["/ready"] = b"second"
        await probe_once(fleet, client)
        assert instance.kv_endpoint == {"remote_engine_id": "new"} and instance.up


async def test_a_worker_that_drained_before_it_restarted_between_two_probes_is_used() -> None:
    async with serving(Worker(OURS)) as worker, asking() as client:
        fleet, (instance,) = decoding(worker.url)
        worker.answers["/ready"] = b"first"
        for _ in range(2):
            await probe_once(fleet, client)
        worker.answers["/ready"] = 503
        await probe_once(fleet, client)
        assert instance.draining
        worker.answers["/ready"] = b"second"
        await probe_once(fleet, client)
        assert fleet.usable("decode") == [instance]


@pytest.mark.parametrize("dialect", ["tokens", "openai"])
async def test_a_proxy_without_files_blames_no_worker(dialect: Any) -> None:
    async with asking(patience_s=SHORT_S) as client:
        fleet, (instance,) = decoding("http://127.0.0.1:9")
        instance.up, instance.known, instance.dialect = True, True, dialect
        with no_files_left():
            await probe_once(fleet, client)
        assert instance.up and instance.known and not instance.draining
        await probe_once(fleet, client)
        assert not instance.up, "no worker is there"
