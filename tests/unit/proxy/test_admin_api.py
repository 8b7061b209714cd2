"""The proxy's management routes over real HTTP, and what goes on beside them."""

import asyncio
import logging
from typing import Any

import aiohttp
import pytest

from protocol.errors import ConfigError
from proxy.assembly import running
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from tests.support.probed_workers import DONE, EVENT, OURS, Worker, serving
from tests.support.relay_workers import CHAT, Relayed, relaying, text

KEY = {"x-api-key": "secret"}
DEAD = "http://127.0.0.1:9"
CONSUMERS = ["tcp://127.0.0.1:7001", "tcp://[::1]:7002"]


async def call(
    proxy: Relayed, method: str, path: str, body: Any = None, headers: Any = KEY
) -> tuple[int, Any]:
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with proxy.session.request(method, proxy.url + path, headers=headers, **data) as response:
        return response.status, await response.json(content_type=None)


def named(url: str, role: str = "decode") -> dict[str, str]:
    return {"role": role, "url": url}


async def listed(proxy: Relayed) -> dict[str, bool]:
    status, answer = await call(proxy, "GET", "/instances")
    assert status == 200
    return {worker["url"]: worker["healthy"] for worker in answer["instances"]}


async def stream(proxy: Relayed) -> aiohttp.ClientResponse:
    """One that has begun."""
    response = await proxy.session.post(proxy.url + CHAT, json=text(stream=True))
    assert response.status == 200 and (await response.content.readline()).startswith(b"data: ")
    return response


async def test_a_worker_is_added_serves_and_is_removed_under_its_streams() -> None:
    async with (
        serving(Worker(OURS)) as old,
        serving(Worker(OURS)) as new,
        relaying("", "--admin-api-key", "secret", "--stall-timeout", "20") as proxy,
    ):
        assert await listed(proxy) == {}
        assert (await call(proxy, "GET", "/health"))[0] == 503
        assert (await proxy.post(text()))[0] == 503
        added = await call(proxy, "POST", "/instances", named(old.url + "/"))
        assert added == (200, {"status": "added", "healthy": True})
        assert (await call(proxy, "GET", "/health"))[0] == 200
        open_stream = await stream(proxy)
        for _ in range(2):  # the second time changes nothing
            assert (await call(proxy, "POST", "/instances", named(new.url)))[0] == 200
        assert await listed(proxy) == {old.url: True, new.url: True}
        removed = await call(proxy, "DELETE", "/instances", named(old.url))
        assert removed == (200, {"status": "removed", "in_flight": 1})
        assert await listed(proxy) == {new.url: True}
        others = [await stream(proxy) for _ in range(3)]
        assert (old.asked.count(CHAT), new.asked.count(CHAT)) == (1, 3)
        old.end.set()
        new.end.set()
        for response in (open_stream, *others):
            assert (await response.read()).endswith(EVENT + DONE)
        again = await call(proxy, "DELETE", "/instances", named(old.url))
        assert (again[0], again[1]["error"]["code"]) == (400, "unknown_instance")


async def test_a_worker_that_is_not_well_is_added_and_waits_for_a_probe() -> None:
    async with relaying("D", "--admin-api-key", "secret") as proxy:
        body = {
            **named(DEAD, "prefill_decode"),
            "ec_zmq_addrs": CONSUMERS,
            "dp_size": 2,
        }
        answer = await call(proxy, "POST", "/instances", body)
        assert answer == (200, {"status": "added", "healthy": False})
        assert (await listed(proxy))[DEAD] is False
        assert [(await proxy.post(text()))[0] for _ in range(4)] == [200] * 4


async def test_addresses_of_a_worker_that_is_there_are_taken_over() -> None:
    async with relaying("", "--admin-api-key", "secret") as proxy:
        body = {**named(DEAD, "prefill_decode"), "dp_size": 2}
        for more in ({"ec_zmq_addrs": CONSUMERS}, {"ec_zmq_addrs": CONSUMERS[::-1]}, {}):
            assert (await call(proxy, "POST", "/instances", {**body, **more}))[0] == 200
        _, answer = await call(proxy, "GET", "/instances")
        assert [worker["ec_zmq_addrs"] for worker in answer["instances"]] == [CONSUMERS[::-1]]


@pytest.mark.parametrize("given", [{}, {"x-api-key": ""}, {"x-api-key": "Secret"}])
async def test_only_the_admin_may(given: dict[str, str]) -> None:
    async with relaying("D", "--admin-api-key", "secret") as proxy:
        before = await listed(proxy)
        for method in ("GET", "POST", "DELETE"):
            body = named(next(iter(before)))
            status, answer = await call(proxy, method, "/instances", body, headers=given)
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"
        assert await listed(proxy) == before


async def test_without_a_key_no_client_may() -> None:
    async with relaying("D") as proxy:
        for given in (KEY, {"x-api-key": ""}):
            assert (await call(proxy, "GET", "/instances", headers=given))[0] == 401


# What is no worker, and the field that says so.
WRONG: list[tuple[Any, str | None]] = [
    (named(DEAD, "master"), "role"),
    ({"url": DEAD}, "role"),
    ({"role": "decode"}, "url"),
    *((named(url), "url") for url in ("ftp://a", "http://", "http://a b", "http://a:99999",
                                      "http://a?b=c", "http://a;b:1", "http://a@b@c/", "http://a@b/",
                                      "http://" + "a" * 70, "http://a\n")),
    ({**named(DEAD), "dp_size": 0}, "dp_size"),
    *(({**named(DEAD), **more}, "ec_zmq_addrs") for more in (
        {"ec_zmq_addrs": CONSUMERS}, {"ec_zmq_addrs": CONSUMERS, "dp_size": 3},
        {"ec_zmq_addrs": ["http://a:1"]}, {"ec_zmq_addrs": ["tcp://a"]},
        {"ec_zmq_addrs": ["tcp://a:0"]}, {"ec_zmq_addrs": ["tcp://a:0;b:1"]}, {"ec_zmq_addrs": ["tcp://a\r\nb:1"]})),
    ({**named(DEAD, "encode"), "ec_zmq_addrs": ["tcp://a:1"]}, "ec_zmq_addrs"),
    (b"{", None),
    (b'{"role": "\xff"}', None),
    (b'{"x":' * 100_000, None),
    (b"[]", None),
]  # fmt: skip


async def test_what_is_no_worker_is_refused() -> None:
    async with relaying("D", "--admin-api-key", "secret") as proxy:
        before = await listed(proxy)
        for body, field in WRONG:
            for method in ("POST", "DELETE"):
                status, answer = await call(proxy, method, "/instances", body)
                assert (status, answer["error"]["param"]) == (400, field), (method, body)
            assert await listed(proxy) == before, body


async def test_with_a_master_the_master_is_the_place() -> None:
    flags = ("--admin-api-key", "secret", "--master-url", "http://127.0.0.1:7000")
    async with relaying("D", *flags) as proxy:
        for method in ("POST", "DELETE"):
            status, answer = await call(proxy, method, "/instances", named(DEAD))
            assert status == 400 and "http://127.0.0.1:7000/instances" in answer["error"]["message"]
        assert len(await listed(proxy)) == 1


async def test_gauges_of_workers_that_have_left_are_gone() -> None:
    async with relaying("DD", "--admin-api-key", "secret") as proxy:
        gone, stays = await listed(proxy)

        def shown() -> str:
            return proxy.metrics.render().decode()

        assert gone in shown() and stays in shown()
        await call(proxy, "DELETE", "/instances", named(gone))
        assert gone not in shown() and stays in shown()
        added = named("http://127.0.0.1:1", "prefill")
        await call(proxy, "POST", "/instances", added)
        assert 'workers_up{role="prefill"}' in shown()
        await call(proxy, "DELETE", "/instances", added)
        assert 'workers_up{role="prefill"}' not in shown()


async def test_the_api_is_documented() -> None:
    async with relaying("D") as proxy:
        _, answer = await call(proxy, "GET", "/openapi.json")
        assert answer["paths"]["/instances"].keys() == {"get", "post", "delete"}


# What can be served, by what is up of a fleet with these workers: (up, takes pictures) → able.
ABLE = [
    ("EPD", "EPD", True, True),
    ("EPD", "ED", True, True),
    ("EPD", "EP", True, True),
    ("EPD", "E", True, False),
    ("EPD", "PD", True, False),
    ("EPD", "PD", False, True),
    ("PD", "D", True, True),
    ("PD", "P", True, True),
    ("D", "", False, False),
    ("", "", True, False),
]


def fleet_of(there: str, up: str) -> Fleet:
    urls = [f"http://{letter}:1" if letter in there else "" for letter in "EPD"]
    fleet = Fleet.from_urls(urls[0], urls[1], urls[2])
    for instance in fleet.all():
        instance.up = instance.url[7] in up
    return fleet


@pytest.mark.parametrize(("there", "up", "pictures", "able"), ABLE)
def test_able_is_who_can_place_a_request(there: str, up: str, pictures: bool, able: bool) -> None:
    assert fleet_of(there, up).able(pictures) == able


@pytest.mark.parametrize(("up", "able"), [("PD", True), ("D", True), ("P", True), ("", False)])
def test_relayed_requests_need_a_worker_that_computes(up: str, able: bool) -> None:
    fleet = fleet_of("PD", up)
    fleet.force_dialect("openai")
    assert fleet.able(pictures=True) == able


def test_workers_that_drain_or_are_left_alone_do_not_count() -> None:
    fleet = fleet_of("D", "D")
    (worker,) = fleet.decode
    worker.draining = True
    assert not fleet.able(pictures=False)
    worker.draining, worker.breaker.failures, worker.breaker.open_until = False, 99, float("inf")
    assert not fleet.able(pictures=False)


async def test_what_goes_on_beside_is_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    """Neither its failure nor that of the first look ends the proxy, or goes unsaid."""
    lives: list[str] = []
    alive = asyncio.Event()

    async def look() -> None:
        raise RecursionError("first")

    async def loop() -> None:
        lives.append("begun")
        if len(lives) < 3:
            raise ValueError("list.remove(x): x not in list")
        alive.set()
        await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20), running({"looking": look}, {"following": loop}):
            await alive.wait()
    messages = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert messages == ["looking has failed", *["following has failed"] * 2]


def test_workers_may_all_be_added_later() -> None:
    assert make_fleet(ProxyConfig(admin_api_key="secret")).all() == []
    with pytest.raises(ConfigError, match="--admin-api-key"):
        make_fleet(ProxyConfig())


async def test_what_the_process_holds_is_told_to_who_has_the_key() -> None:
    async with relaying("D", "--admin-api-key", "secret") as proxy:
        for headers in ({}, {"x-api-key": "another"}):
            assert (await call(proxy, "GET", "/integrity", headers=headers))[0] == 401
        before = (await call(proxy, "GET", "/integrity"))[1]["process"]
        assert before["open_files"] > 0 and before["threads"] > 0
        leaked = [asyncio.create_task(asyncio.Event().wait()) for _ in range(5)]
        after = (await call(proxy, "GET", "/integrity"))[1]["process"]
        assert after["tasks"] == before["tasks"] + len(leaked)
        for task in leaked:
            task.cancel()
