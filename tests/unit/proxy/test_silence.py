"""Workers from which nothing comes, neither an answer nor a refusal: noticed soon, and what was
asked of them ends."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from proxy.dispatch import Dispatch
from proxy.fleet.fleet import Fleet
from proxy.fleet.probing import probe, probe_once, probe_one
from proxy.fleet.worker import Instance
from proxy.metrics import ProxyMetrics
from proxy.request_state import Tries
from proxy.upstream.answer import AnswerLimits
from proxy.upstream.client import UpstreamClient, reachable
from proxy.upstream.connection_pool import Traffic
from proxy.upstream.failures import CallFailed
from proxy.upstream.patience import Patience
from proxy.upstream.pools import ConnectionPools
from tests.support.probed_workers import OURS, PATIENT_S, Worker, serving
from tests.support.waiting import eventually

PROBE_S = 1.0  # for workers of which some are silent


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """The URL of an address that takes no connection and refuses none."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    client = UpstreamClient(2.0, probe_timeout_s=PATIENT_S)
    async with asyncio.timeout(30):
        yield client
    await client.close()


async def test_what_is_reachable() -> None:
    with black_hole() as hole, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await reachable(f"http://127.0.0.1:{port}", 5.0), "no process need accept"
        assert await reachable("http://127.0.0.1:9", 5.0), "a refusal is an answer"
        assert await reachable("http://no-such-host.invalid:9", 5.0), "that says nothing of it"
        assert not await reachable(hole, PROBE_S)


async def test_who_is_cut_off_is_given_up_at_its_first_late_probe(client: UpstreamClient) -> None:
    """One that only its process is silent of may be busy."""
    async with serving(Worker(OURS)) as busy, serving(Worker(OURS)) as good:
        with black_hole() as hole:
            fleet = Fleet.from_urls("", "", ",".join((hole, busy.url, good.url)))
            one, other, third = fleet.decode
            busy.silent = {"/ready", "/health"}
            await probe_one(fleet, client, third)
            client._probe_timeout = PROBE_S
            await asyncio.gather(*(probe_one(fleet, client, silent) for silent in (one, other)))
            assert (one.lost, other.lost, third.up) == (True, False, True)
            asked = await fleet.doubtful(0.0)
            assert other in asked, "it is asked again at once"
            assert third in asked, "it has the address of one that is cut off"


async def test_who_shares_an_address_with_one_that_is_cut_off_is_asked_at_once(
    client: UpstreamClient,
) -> None:
    """Not one that is elsewhere, nor one that is down already."""
    async with serving(Worker(OURS)) as good, serving(Worker(OURS)) as other:
        with black_hole() as hole:
            elsewhere = other.url.replace("127.0.0.1", "localhost")
            fleet = Fleet.from_urls(good.url, "http://127.0.0.1:9", f"{hole},{elsewhere}")
            (beside,), (down,), (one, away) = fleet.encode, fleet.prefill, fleet.decode
            for who in (beside, down, away):
                await probe_one(fleet, client, who)
            client._probe_timeout = PROBE_S
            await probe_one(fleet, client, one)
            assert (one.lost, beside.up, away.up, down.up) == (True, True, True, False)
            assert await fleet.doubtful(0.0) == [beside]


async def test_of_all_that_are_cut_off_together_none_is_given_up_at_once() -> None:
    with black_hole() as hole, black_hole() as second:
        client = UpstreamClient(2.0, probe_timeout_s=0.1)
        fleet = Fleet.from_urls("", "", f"{hole},{second}")
        await probe_once(fleet, client)
        for _ in range(3):
            await probe_once(fleet, client)
        assert not any(instance.lost for instance in fleet.decode)
        await client.close()


@contextlib.asynccontextmanager
async def calling(
    fleet: Fleet, client: UpstreamClient, worker: Worker, instance: Instance
) -> AsyncIterator["asyncio.Task[bytes]"]:
    """A stream whose first event has come, waiting for the next one."""
    dispatch = Dispatch(fleet, ProxyMetrics(fleet))
    patience = Patience(time.monotonic() + 60, 60, 60, instance)
    with dispatch.calling(Tries(deadline=patience.deadline), instance, "decode"):
        events = client.stream(f"{worker.url}/open", b"", {}, patience)
        assert b"choices" in await anext(events)
        yield asyncio.create_task(anext(events))


async def test_a_worker_that_a_master_knows_is_listened_to_while_calls_wait(
    client: UpstreamClient,
) -> None:
    """The master would notice after a lease."""
    async with serving(Worker(OURS)) as worker, serving(Worker(OURS)) as idle:
        fleet = Fleet.from_urls("", "", f"{worker.url},{idle.url}")
        await probe_once(fleet, client)
        instance, other = fleet.decode
        fleet.watched = instance.known_to_master = other.known_to_master = True
        asked = len(idle.asked)
        async with calling(fleet, client, worker, instance) as waiting:
            worker.silent, client._probe_timeout = {"/ready", "/health"}, PROBE_S
            probing = asyncio.create_task(probe(fleet, client, 0.05))
            with pytest.raises(CallFailed, match="silent"):
                await waiting
            assert instance.lost and other.up
            assert len(idle.asked) == asked, "nothing waits there"
            probing.cancel()


async def test_a_quiet_worker_that_answers_keeps_its_calls(client: UpstreamClient) -> None:
    async with serving(Worker(OURS)) as worker, serving(Worker(OURS)) as idle:
        fleet = Fleet.from_urls("", "", f"{worker.url},{idle.url}")
        await probe_once(fleet, client)
        instance, other = fleet.decode
        fleet.watched = instance.known_to_master = other.known_to_master = True
        async with calling(fleet, client, worker, instance) as waiting:
            instance.late_probes = 2
            await probe_once(fleet, client)
            assert (instance.late_probes, instance.lost) == (0, False)
            worker.end.set()
            assert b"choices" in await waiting


async def test_relayed_calls_end_with_a_worker_that_is_given_up() -> None:
    async with serving(Worker(OURS)) as worker:
        fleet = Fleet.from_urls("", "", worker.url)
        (instance,) = fleet.decode
        pools = ConnectionPools(lambda: [worker.url], 2.0, 1, Traffic())
        pool, limits = pools.of(instance), AnswerLimits(60, 60, 1 << 20)
        streaming, _ = await pool.ask("/open", b"", [b""], limits)
        worker.silent = {"/slow"}
        answering = asyncio.create_task(pool.ask("/slow", b"", [b""], limits))
        reading = asyncio.create_task(streaming.forward())
        await eventually(lambda: "/slow" in worker.asked)
        pools.give_up([instance])
        await asyncio.sleep(0)
        assert not (reading.done() or answering.done())
        instance.lost = True
        pools.give_up([instance])
        for call in (reading, answering):
            with pytest.raises(CallFailed) as caught:
                await call
            assert caught.value.kind == "silent"
        pools.close()
