"""Media URLs: what may be fetched is fetched, everything else is refused with the field's name."""

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError, RequestError
from services.frontend.addresses import is_public
from services.frontend.config import MediaConfig
from services.frontend.lookups import LookUps
from services.frontend.media import MediaFetcher
from tests.support.frontend_helpers import picture

PICTURE = picture()
PARAM = "messages[0].content[1].image_url.url"


async def fetch(url: str, **options: Any) -> bytes:
    fetcher = MediaFetcher(MediaConfig(**options))
    try:
        return await fetcher.fetch(url, param=PARAM)
    finally:
        await fetcher.close()


async def refusal(url: str, **options: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await fetch(url, **options)
    assert caught.value.param == PARAM
    return caught.value


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


# --- data: --------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=200))
def test_base64_data_is_decoded(data: bytes) -> None:
    plain = base64.b64encode(data).decode()
    wrapped = base64.encodebytes(data).decode()
    escaped = plain.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    for body in (plain, wrapped, escaped, plain.rstrip("=")):
        assert asyncio.run(fetch(f"data:image/png;base64,{body}")) == data
    assert asyncio.run(fetch("DATA:;BASE64," + plain)) == data


async def test_percent_encoded_data_is_decoded() -> None:
    assert await fetch("data:image/svg+xml,%3Csvg%2F%3E%20") == b"<svg/> "


async def test_large_data_is_decoded_off_the_event_loop() -> None:
    data = bytes(3 << 20)
    url = "data:;base64," + base64.b64encode(data).decode()
    assert await fetch(url) == data


@pytest.mark.parametrize(
    "url", ["data:image/png", "data:;base64,%%%", "data:;base64,AAAAA", "data:;base64,é", "data:"]
)
async def test_broken_data_is_refused(url: str) -> None:
    assert (await refusal(url)).status == 400


async def test_too_much_data_is_refused() -> None:
    url = "data:;base64," + base64.b64encode(bytes(1001)).decode()
    assert (await refusal(url, max_bytes=1000)).status == 413
    assert (await refusal("data:," + "x" * 1001, max_bytes=1000)).status == 413
    exact = "data:;base64," + base64.b64encode(bytes(1000)).decode()
    assert len(await fetch(exact, max_bytes=1000)) == 1000


# --- schemes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["ftp://a/b", "gopher://a", "javascript:1", "/etc/passwd", "", ":"])
async def test_other_schemes_are_refused(url: str) -> None:
    error = await refusal(url)
    assert (error.status, error.code) == (400, "unsupported_url_scheme")


# --- http ---------------------------------------------------------------------------------------


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


# --- file: --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "media with blank"
    inside.mkdir()
    (inside / "picture.png").write_bytes(PICTURE)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media with blank 2").mkdir()
    (tmp_path / "media with blank 2" / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "inner-link").symlink_to(inside / "picture.png")
    os.mkfifo(inside / "pipe")
    return inside


async def test_files_in_the_allowed_folder_are_read(folder: Path) -> None:
    for name in ("picture.png", "inner-link", "../media with blank/picture.png"):
        url = f"file://{folder}/{name}".replace(" ", "%20")
        assert await fetch(url, allowed_local_path=folder) == PICTURE
    host = f"file://localhost{folder}/picture.png"
    assert await fetch(host, allowed_local_path=folder) == PICTURE


@pytest.mark.parametrize(
    "name",
    ["link", "../secret", "../media with blank 2/secret", "%2e%2e/secret", "/../../etc/passwd"],
)
async def test_files_outside_are_refused(name: str, folder: Path) -> None:
    error = await refusal(f"file://{folder}/{name}", allowed_local_path=folder)
    assert (error.status, error.code) == (400, "forbidden_url")


async def test_files_are_refused_where_no_folder_is_allowed(folder: Path) -> None:
    assert (await refusal(f"file://{folder}/picture.png")).code == "forbidden_url"
    url = f"file://elsewhere{folder}/picture.png"
    assert (await refusal(url, allowed_local_path=folder)).code == "forbidden_url"


@pytest.mark.parametrize("name", ["missing", "pipe", ""])
async def test_what_is_no_file_is_refused(name: str, folder: Path) -> None:
    error = await refusal(f"file://{folder}/{name}", allowed_local_path=folder)
    assert (error.status, error.code) == (400, "media_unreachable")


async def test_large_files_are_refused(folder: Path) -> None:
    url = f"file://{folder}/picture.png"
    error = await refusal(url, allowed_local_path=folder, max_bytes=len(PICTURE) - 1)
    assert error.status == 413


def test_wrong_settings_are_refused_at_start(tmp_path: Path) -> None:
    for options in ({"max_bytes": 0}, {"timeout_s": -1}, {"allowed_local_path": tmp_path / "no"}):
        with pytest.raises(ConfigError):
            MediaConfig(**options)
