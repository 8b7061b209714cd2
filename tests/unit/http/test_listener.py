"""Connections are bounded in all that a client can take its time over; on real sockets."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from services.http.bodies import read_body
from services.http.client_bounds import MAX_HEAD, TOO_MUCH, Framing, Pace, RequestFraming
from services.http.listener import Listener
from services.http.turns import LARGE
from tests.conftest import Pass
from tests.support.listening import Client, code_of, listening, post, run
from tests.support.waiting import eventually


class Brisk(Listener):
    pace = Pace(grace_s=0.3, bytes_per_s=1e9)


HEAD = b"POST /x HTTP/1.1\r\nhost: x\r\n"


class Counted:
    """Answers with the body's size; `lost` counts requests whose client left."""

    def __init__(self) -> None:
        self.lost = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await read_body(Request(scope, receive), 1 << 20)
        except Exception:
            self.lost += 1
            return
        await Response(str(len(body)))(scope, receive, send)


@pytest.mark.parametrize(
    "begun",
    [
        b"P",
        HEAD[:20],
        HEAD + b"content-length: 10\r\n\r\n",
        HEAD + b"content-length: 10\r\n\r\nabc",
        HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ],
)
def test_a_request_that_does_not_come_is_answered_408(begun: bytes) -> None:
    async def work() -> None:
        app = Counted()
        async with listening(app) as address, Client(address) as client:
            await client.send(begun)
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 408 ") and code_of(answer) == "request_timeout"
            assert b"connection: close" in answer
            assert app.lost == (1 if b"\r\n\r\n" in begun else 0)

    run(work)


@pytest.mark.parametrize("before", [b"", post("/x", b"1")])
@pytest.mark.parametrize("line", [b"CONNECT a:22 HTTP/1.1", b"CONNECT : HTTP/1.1"])
def test_a_target_that_is_no_path_is_answered_400(line: bytes, before: bytes) -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            if before:
                await client.send(before)
                assert (await client.answer())[0] == 200
            await client.send(line + b"\r\nhost: a:22\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 ") and code_of(answer) == "invalid_value"

    run(work)


def test_a_connection_that_says_nothing_is_closed() -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            assert await client.rest() == b""

    run(work)


def test_bytes_one_by_one_do_not_hold_a_connection() -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(HEAD + b"content-length: 100000\r\n\r\n")
            rest = asyncio.ensure_future(client.rest())
            while not rest.done():
                await client.send(b"x")
                await asyncio.sleep(0.02)
            assert rest.result().startswith(b"HTTP/1.1 408 ")

    run(work)


def test_a_large_body_may_take_its_time(passes: Pass) -> None:
    """Three times as long as a request that stands still."""

    class Patient(Listener):
        pace = Pace(grace_s=4.0, bytes_per_s=200.0)

    async def work() -> None:
        async with listening(Counted(), Patient) as address, Client(address) as client:
            await client.send(HEAD + b"content-length: 6000\r\n\r\n" + b"x" * 3000)
            for _ in range(20):
                await client.send(b"x" * 150)
                passes(0.6)
                await asyncio.sleep(0.005)
            assert await client.answer() == (200, b"6000")

    run(work)


def test_a_kept_connection_is_watched_again() -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(post("/x", b"ab"))
            assert await client.answer() == (200, b"2")
            await asyncio.sleep(0.5)  # idle, which is no offence
            await client.send(post("/x", b"abc"))
            assert await client.answer() == (200, b"3")
            await client.send(HEAD)
            assert code_of(await client.rest()) == "request_timeout"

    run(work)


@pytest.mark.parametrize(
    "flood",
    [
        HEAD + b"a: " + b"b" * 2_000_000,
        HEAD + b"a: b\r\n" * 200_000,
        HEAD + b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 2_000_000,
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + b"a: b\r\n" * 200_000,
    ],
)
def test_a_flood_around_the_body_is_refused(flood: bytes) -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            with contextlib.suppress(ConnectionError):
                await client.send(flood)
            answer = await client.rest()
            assert not answer or code_of(answer) == "invalid_value"

    run(work)


def test_chunks_of_one_byte_are_no_flood() -> None:
    assert RequestFraming().fits(6 * 100_000 + 200, 100_000)
    assert not RequestFraming().fits(1 << 17, 10)


def test_what_comes_with_none_of_the_body_is_bounded_however_much_body_came_before() -> None:
    """The parser puts a header together anew with each of its pieces."""
    for framing in (Framing(), RequestFraming()):
        size = 1 << 24
        assert framing.fits(size, size)
        assert framing.fits(size + MAX_HEAD, size)
        assert not framing.fits(size + MAX_HEAD + 1, size)
        assert framing.fits(size + MAX_HEAD + 2, size + 1)


@pytest.mark.parametrize("long", [b"a: " + b"b" * 100_000, b"a: b\r\n" * 30_000 + b"c: d"])
def test_a_large_head_is_refused_also_in_a_single_piece(long: bytes) -> None:
    """As a transport with room for all of it hands it over."""
    called = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal called
        called = True

    class Whole(Listener):
        held = b""

        def data_received(self, data: bytes) -> None:
            self.held += data
            if self.held.endswith(b"\r\n\r\nabc"):
                super().data_received(self.held)

    async def work() -> None:
        async with listening(app, Whole) as address, Client(address) as client:
            await client.send(HEAD + long + b"\r\ncontent-length: 3\r\n\r\nabc")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 ") and TOO_MUCH.encode() in answer
            assert not called

    run(work)


def test_endless_trailers_are_refused_however_large_the_body_was() -> None:
    size = 1 << 19
    chunk = b"%x\r\n%b\r\n" % (size, bytes(size))

    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\na: ")
            # Of which eight times the body's bytes would be allowed in all.
            with contextlib.suppress(ConnectionError):
                await client.send(b"b" * size)
            answer = await client.rest()
            assert not answer or code_of(answer) == "invalid_value"

    run(work)


def test_what_is_not_http_is_told_so_in_openais_form() -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(b"\x16\x03\x01 tls?\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 ") and code_of(answer) == "invalid_value"

    run(work)


@pytest.mark.parametrize(
    "line", [b"CONNECT a:22", b"CONNECT a", b"GET a:22", b"GET http://[", b"GET http://a:99999999/"]
)
def test_a_target_that_is_no_url_is_refused(line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(line + b" HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 "), answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]

    run(work)
    assert "Traceback" not in caplog.text


def test_what_is_thrown_away_of_a_large_body_is_read_by_turns() -> None:
    """The client writes on after it was refused."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await Response("no", 503)(scope, receive, send)

    async def work() -> None:
        rests: list[Any] = []

        class Counting(Listener):
            def _rest(self) -> None:
                rests.append(self)
                super()._rest()

        size = LARGE << 2
        async with listening(refuse, Counting) as address, Client(address) as client:
            await client.send(HEAD + b"content-length: %d\r\n\r\n" % size)
            assert (await client.answer())[0] == 503
            await client.send(bytes(size))
            await eventually(lambda: bool(rests))
            await client.send(HEAD + b"content-length: 0\r\n\r\n")
            assert (await client.answer())[0] == 503, "it reads on"

    run(work)
