"""Media over HTTP: what may be fetched is fetched, all else is refused with the field's name."""

import asyncio
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from services.frontend.media.lookups import LookUps, is_public
from tests.support.frontend_helpers import picture
from tests.support.media_urls import fetch, refusal

PICTURE = picture()


class Server:
    """A web server on an ephemeral port of this machine that counts what it is asked."""

    def __init__(self, port: int, asked: list[str]) -> None:
        self.port = port
        self.asked = asked

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    answering = asyncio.Event()

    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path == "/picture.png":
            return web.Response(body=PICTURE, content_type="image/png")
        if request.path == "/slow":
            await answering.wait()
        if request.path == "/endless":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(bytes(1 << 12))
        if request.path == "/to":
            raise web.HTTPFound(request.query["url"])
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield Server(runner.addresses[0][1], asked)
    answering.set()
    await runner.cleanup()


@pytest.mark.parametrize("url", ["ftp://a/b", "gopher://a", "javascript:1", "/etc/passwd", "", ":"])
async def test_other_schemes_are_refused(url: str) -> None:
    error = await refusal(url)
    assert (error.status, error.code) == (400, "unsupported_url_scheme")


async def test_a_picture_is_fetched_where_private_addresses_are_allowed(server: Server) -> None:
    assert await fetch(server.url("/picture.png"), allow_private=True) == PICTURE


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "0x7f.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "[fe80::1]",
        "[fd00::1]",
        "user:secret@127.0.0.1",
    ],
)
async def test_private_addresses_are_refused(host: str, server: Server) -> None:
    error = await refusal(server.url("/picture.png", host), timeout_s=5)
    assert (error.status, error.code) == (400, "forbidden_url")
    assert server.asked == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0177.0.0.1"])
async def test_odd_spellings_of_private_addresses_are_refused(host: str, server: Server) -> None:
    assert (await refusal(server.url("/picture.png", host), timeout_s=5)).status == 400
    assert server.asked == []


async def resolve_to_this_machine(
    self: object, host: str, port: int = 0, caller: object = None, family: int = 0
) -> list[ResolveResult]:
    return [
        ResolveResult(
            hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=0, flags=0
        )
    ]


async def test_a_name_is_checked_by_the_addresses_it_resolves_to(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LookUps, "_ask", resolve_to_this_machine)
    url = server.url("/picture.png", "pictures.example.com")
    assert (await refusal(url)).code == "forbidden_url"
    assert server.asked == []
    assert await fetch(url, allow_private=True) == PICTURE


async def test_every_redirect_is_checked_again(server: Server) -> None:
    target = server.url("/picture.png")
    url = server.url(f"/to?url={target}")
    assert await fetch(url, allow_private=True) == PICTURE
    for place in ("file:///etc/passwd", "ftp://a/b", "data:,x"):
        error = await refusal(server.url(f"/to?url={place}"), allow_private=True)
        assert error.code == "forbidden_url"
    hosts = frozenset({"127.0.0.1"})
    elsewhere = server.url(f"/to?url={server.url('/picture.png', 'localhost')}")
    error = await refusal(elsewhere, allow_private=True, allowed_domains=hosts)
    assert error.code == "forbidden_url"


async def test_a_redirect_to_a_private_address_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hop is made to count as public; the second goes to a literal address."""

    for name in ("_ask", "resolve"):
        monkeypatch.setattr(LookUps, name, resolve_to_this_machine)
    target = server.url("/picture.png")
    assert (await refusal(server.url(f"/to?url={target}", "public.test"))).code == "forbidden_url"
    assert server.asked == ["/to"]


async def test_redirects_are_limited(server: Server) -> None:
    loop = server.url("/to?url=/to%3Furl%3D/to")
    error = await refusal(loop, allow_private=True, max_redirects=1)
    assert error.code == "media_unreachable" and len(server.asked) == 2


async def test_only_allowed_domains_are_fetched_from(server: Server) -> None:
    url = server.url("/picture.png")
    options: dict[str, Any] = {"allow_private": True}
    assert (
        await fetch(url, allowed_domains=frozenset({"127.0.0.1", "Example.COM"}), **options)
        == PICTURE
    )
    error = await refusal(url, allowed_domains=frozenset({"example.com"}), **options)
    assert (error.status, error.code) == (400, "forbidden_url")


async def test_too_large_answers_are_refused_while_they_come(server: Server) -> None:
    for path in ("/endless", "/picture.png"):
        assert (await refusal(server.url(path), allow_private=True, max_bytes=50)).status == 413


async def test_what_cannot_be_reached_is_told(server: Server) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        urls = [
            f"http://127.0.0.1:{port}/",
            server.url("/missing"),
            "http://no-such-host.invalid/",
        ]
        for url in urls:
            error = await refusal(url, allow_private=True)
            assert (error.status, error.code) == (400, "media_unreachable")


async def test_a_slow_server_is_given_up(server: Server) -> None:
    error = await refusal(server.url("/slow"), allow_private=True, timeout_s=0.2)
    assert (error.status, error.code) == (400, "media_unreachable")


@pytest.mark.parametrize("url", ["http://", "http:///x", "http://[::1", "http://a:99999/"])
async def test_malformed_urls_are_refused(url: str) -> None:
    assert (await refusal(url)).status == 400


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_as_public_as_itself(number: int) -> None:
    plain = ip_address(number)
    for text in (
        f"::ffff:{plain}",
        f"64:ff9b::{plain}",
        f"2002:{number >> 16:x}:{number & 65535:x}::",
    ):
        assert is_public(ip_address(text)) == is_public(plain)


def test_public_addresses_are_public() -> None:
    for address in ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:80b::200e"):
        assert is_public(ip_address(address))
