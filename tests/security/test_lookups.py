"""Host names: no caller's look-ups wait for another's, and every odd name is the client's error."""

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from protocol.errors import InvalidRequest
from services.frontend.config import MediaConfig
from services.frontend.media.fetching import MediaFetcher
from services.frontend.media.lookups import Caller, LookUps, is_public
from tests.support.name_servers import PUBLIC, Names, name_server
from tests.support.waiting import eventually


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    with name_server(monkeypatch) as server:
        yield server


THEM, US = Caller("10.0.0.1", "them"), Caller("10.0.0.2", "us")


async def test_a_callers_slow_names_keep_no_other_caller_waiting(names: Names) -> None:
    """Also once they have been given up: their threads are still busy."""
    lookups = LookUps(public_only=True)
    for _ in range(3):
        many = [
            asyncio.ensure_future(lookups.find(f"{number}.slow", 80, THEM)) for number in range(32)
        ]
        await eventually(lambda: names.slow == 4)
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)
    assert names.slow == 4
    for caller in (US, Caller("10.0.0.1", "a neighbour")):
        await lookups.find(f"{caller.tenant[-2:]}.example", 80, caller)
    await lookups.find("good.example", 80, US)
    (found,) = await lookups.resolve("good.example", 443)
    assert (found["host"], found["port"]) == (PUBLIC, 443)
    names.go_on.set()
    await lookups.find("good.example2", 80, THEM)
    await eventually(lambda: not lookups._slots)
    await lookups.close()


async def test_other_names_for_oneself_do_not_help(names: Names) -> None:
    """A client may send any number of keys that no server checks."""
    lookups = LookUps(public_only=True)
    many = [
        asyncio.ensure_future(lookups.find(f"{n}.slow", 80, Caller("10.0.0.1", str(n))))
        for n in range(64)
    ]
    await eventually(lambda: names.slow == 16)
    await lookups.find("good.example", 80, US)
    assert names.slow == 16
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    names.go_on.set()
    await eventually(lambda: not lookups._slots)
    await lookups.close()


async def test_many_names_of_one_without_a_key(names: Names) -> None:
    lookups = LookUps(public_only=True)
    keyless = Caller("10.0.0.1")
    await asyncio.gather(*[lookups.find(f"{n}.example", 80, keyless) for n in range(100)])
    assert len(names.asked) == 100
    await eventually(lambda: not lookups._slots)
    await lookups.close()


async def test_what_was_looked_up_is_not_asked_again(names: Names) -> None:
    lookups = LookUps(public_only=False)
    for _ in range(3):
        await lookups.find("a.example", 80, US)
        await lookups.resolve("a.example", 80)
    assert names.asked == ["a.example"]
    for number in range(2000):
        lookups._keep(f"{number}", [])
    assert len(lookups._kept) <= 1024
    await lookups.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://xn--/",
        "http://xn--a/x.png",
        f"http://{'a' * 300}/",
        "http://a..b/",
        "http://\udc80/",
        "http://[::1/",
        "http://a:99999/",
    ],
)
async def test_names_that_are_none_are_the_clients_error(url: str) -> None:
    fetcher = MediaFetcher(MediaConfig())
    try:
        with pytest.raises(InvalidRequest) as caught:
            await fetcher.fetch(url, param="here")
        assert (caught.value.status, caught.value.param) == (400, "here")
    finally:
        await fetcher.close()


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("192.88.99.1", False),
        ("192.88.98.1", True),
        ("3fff::1", False),
        ("3fff:fff::1", False),
        ("3ffe::1", True),
        ("::ffff:192.88.99.1", False),
        ("2002:c058:6301::1", False),
    ],
)
def test_addresses_that_lead_into_somebodys_network(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) == public
