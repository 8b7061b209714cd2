"""A proxy's link to its masters: who is asked, who next, and for how long."""

import asyncio
import time

import msgspec
import pytest
from aiohttp import web

from protocol.errors import DeadlineExceeded, InvalidRequest
from protocol.placement import FINISHED_PATH, Finished, FinishedReports
from protocol.registry import (
    HEARTBEAT_PATH,
    REGISTER_PATH,
    WORKERS_PATH,
    Heartbeat,
    InstanceInfo,
    LeaseAnswer,
    Workers,
)
from proxy.placement.master_client import MasterAway, MasterClient, Reporter
from proxy.upstream.client import UpstreamClient
from tests.support.live_masters import running
from tests.support.shortage import no_files_left
from tests.support.waiting import eventually

DECODER = "http://127.0.0.1:2"


async def test_what_one_master_cannot_be_told_another_is() -> None:
    async with running(2) as ((first, second), link, _):
        await link.get(f"{WORKERS_PATH}?after=&wait_s=0", Workers, 5.0)
        assert link.present and link.url == first.url
        await first.stop()
        info = InstanceInfo("d", "decode", DECODER, "m")
        answer = await link.post(REGISTER_PATH, info, LeaseAnswer, time.monotonic() + 10)
        assert answer.known and "d" in second.service.master.registry.instances
        assert (link.url, link.present, link.failovers) == (second.url, True, 1)
        await second.stop()
        began = time.monotonic()
        with pytest.raises(MasterAway):
            await link.post(REGISTER_PATH, info, LeaseAnswer, time.monotonic() + 10)
        assert time.monotonic() - began < 5 and not link.present and link.failovers == 2


async def test_ends_of_requests_that_no_master_heard_of_are_told_later() -> None:
    """A master that was away for a while still counts the requests, and their tenants' shares."""
    told: list[Finished] = []
    working = False

    async def over(request: web.Request) -> web.Response:
        if not working:
            return web.Response(status=500)
        told.extend(msgspec.msgpack.decode(await request.read(), type=FinishedReports).reports)
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer(True)))

    app = web.Application()
    app.router.add_post(FINISHED_PATH, over)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = UpstreamClient(5.0)
    link = MasterClient(["http://{}:{}".format(*runner.addresses[0][:2])], client)
    reporter = Reporter(link)
    telling = asyncio.create_task(reporter.run())
    reporter.add(Finished("while it was away", failed=["d0"]))
    await eventually(lambda: not any(one.failed for one in reporter._waiting))
    link.heard(link.url)
    reporter.add(Finished("a", "encode", ["x"]))
    reporter.add(Finished("a", elapsed_s=1.0))
    await eventually(lambda: not link.present)
    working = True
    link.heard(link.url)
    await eventually(lambda: len(told) == 2)
    # What a worker did is old by then: only that nothing is under way any more is told.
    assert told == [Finished(name, aborted=True) for name in ("while it was away", "a")]
    assert not reporter._waiting
    await eventually(lambda: not reporter._telling)  # its answer has come
    told.clear()
    reporter.add(Finished("the last", elapsed_s=1.0))
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert told == [Finished("the last", elapsed_s=1.0)], "a proxy that ends tells what is left"
    await client.close()
    await runner.cleanup()


async def test_a_proxy_that_ends_tells_no_failure_twice() -> None:
    told: list[list[Finished]] = []
    heard, go_on = asyncio.Event(), asyncio.Event()

    async def over(request: web.Request) -> web.Response:
        told.append(msgspec.msgpack.decode(await request.read(), type=FinishedReports).reports)
        heard.set()
        await go_on.wait()
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer(True)))

    app = web.Application()
    app.router.add_post(FINISHED_PATH, over)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = UpstreamClient(5.0)
    link = MasterClient(["http://{}:{}".format(*runner.addresses[0][:2])], client)
    link.heard(link.url)
    reporter = Reporter(link)
    telling = asyncio.create_task(reporter.run())
    reporter.add(Finished("a", failed=["d0"]))
    await heard.wait()
    reporter.add(Finished("b", failed=["d1"]))
    go_on.set()
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    first, *later = told
    assert first == [Finished("a", failed=["d0"])]
    assert later == [[Finished("a", aborted=True), Finished("b", failed=["d1"])]]
    await client.close()
    await runner.cleanup()


async def test_a_master_hears_of_the_requests_trace() -> None:
    """Over either way to it: the connection of one that is present, and the other client's."""
    told: list[str] = []

    async def known(request: web.Request) -> web.Response:
        told.append(request.headers["traceparent"] + request.headers["tracestate"])
        return web.Response(body=msgspec.msgpack.encode(LeaseAnswer(True)))

    app = web.Application()
    app.router.add_post("/{path:.*}", known)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = UpstreamClient(5.0)
    link = MasterClient(["http://{}:{}".format(*runner.addresses[0][:2])], client)
    for present in (False, True):
        assert link.present == present
        trace, deadline = {"traceparent": "a", "tracestate": "b"}, time.monotonic() + 10
        await link.post(HEARTBEAT_PATH, Heartbeat("d"), LeaseAnswer, deadline, trace)
    assert told == ["ab", "ab"]
    await client.close()
    await runner.cleanup()


async def test_a_master_that_is_broken_is_not_the_last_word() -> None:
    """Half an answer, and an error of its own; what another says of the request is."""

    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500) if "heart" in request.path else web.Response(body=b"\xc1")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", broken)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    bad = "http://{}:{}".format(*runner.addresses[0][:2])
    async with running() as ((good,), _, client):
        deadline = time.monotonic() + 10
        for path, body in ((REGISTER_PATH, InstanceInfo("d", "decode", DECODER, "m")),
                           (HEARTBEAT_PATH, Heartbeat("d"))):  # fmt: skip
            link = MasterClient([bad, good.url], client)
            assert (await link.post(path, body, LeaseAnswer, deadline)).known
            assert link.url == good.url
        link = MasterClient([bad], client)
        with pytest.raises(MasterAway, match=r"answer is not a valid Workers in msgpack: .* mal"):
            await link.get(WORKERS_PATH, Workers, 5.0)
        link = MasterClient([good.url, bad], client)
        with pytest.raises(InvalidRequest):
            await link.post(REGISTER_PATH, {"instance_id": ""}, LeaseAnswer, deadline)
        assert link.url == good.url
    await runner.cleanup()


async def test_a_master_that_is_silent_and_was_never_heard_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its successor may take as long as it likes, once the fleet watcher has heard of it."""
    monkeypatch.setattr("proxy.placement.master_client._UNHEARD_S", 0.2)

    async def slowly(request: web.Request) -> web.Response:
        await asyncio.sleep(1.5)
        return web.Response(body=b"\x80")  # an empty msgpack map

    async def never(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    urls = []
    runners = []
    for behave in (never, slowly):
        app = web.Application()
        app.router.add_post("/{path:.*}", behave)
        runners.append(web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        urls.append("http://{}:{}".format(*runners[-1].addresses[0][:2]))
    client = UpstreamClient(2.0)
    link = MasterClient(urls, client)
    beat = Heartbeat("d")
    asked = asyncio.create_task(link.post(HEARTBEAT_PATH, beat, LeaseAnswer, time.monotonic() + 10))
    async with asyncio.timeout(10):
        while link.url != urls[1]:  # noqa: ASYNC110 — what is awaited has no event
            await asyncio.sleep(0.01)
        link.heard(urls[1])
        assert (await asked).known
    await client.close()
    for runner in runners:
        await runner.cleanup()


async def test_a_proxy_without_files_keeps_its_master() -> None:
    client = UpstreamClient(2.0)
    link = MasterClient(["http://127.0.0.1:8", "http://127.0.0.1:9"], client)
    link.heard(link.url)
    with no_files_left(), pytest.raises(MasterAway):
        await link.get(WORKERS_PATH, Workers, 1.0)
    assert (link.url, link.present, link.failovers) == ("http://127.0.0.1:8", True, 0)
    with pytest.raises(MasterAway):
        await link.get(WORKERS_PATH, Workers, 1.0)
    assert (link.url, link.failovers) == ("http://127.0.0.1:9", 1)
    await client.close()


async def test_a_master_that_goes_silent_during_a_call_is_left_for_the_next() -> None:
    """The fleet watcher finds out; the call ends then, and another master answers it."""
    asked = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.sleep(60)
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", never)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    silent = "http://{}:{}".format(*runner.addresses[0][:2])
    async with running() as ((good,), _, client), asyncio.timeout(10):
        link = MasterClient([silent, good.url], client)
        link.heard(silent)
        info = InstanceInfo("d", "decode", DECODER, "m")
        call = link.post(REGISTER_PATH, info, LeaseAnswer, time.monotonic() + 30)
        waiting = asyncio.create_task(call)
        await asked.wait()
        link.failed(silent, MasterAway("no answer to a poll"))
        assert (await waiting).known and link.url == good.url
    await runner.cleanup()


async def test_a_request_whose_time_is_up_says_so_and_keeps_its_master() -> None:
    async with running() as ((good,), link, _):
        link.heard(good.url)
        with pytest.raises(DeadlineExceeded):
            await link.post(HEARTBEAT_PATH, Heartbeat("d"), LeaseAnswer, time.monotonic() - 1)
        assert link.present
