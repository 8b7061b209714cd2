"""Connections are bounded in all that a client can take its time over; on real sockets."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from services.http.bodies import read_body
from services.http.deadline import NEVER, Deadline
from services.http.listener import Listener, Pace, framing_fits
from services.http.streams import DONE, EventStream, sse
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


def test_a_large_body_may_take_its_time() -> None:
    """Three times as long as a request that stands still."""

    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(HEAD + b"content-length: 6000\r\n\r\n" + b"x" * 3000)
            for _ in range(20):
                await client.send(b"x" * 150)
                await asyncio.sleep(0.045)
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
    assert framing_fits(6 * 100_000 + 200, 100_000)
    assert not framing_fits(1 << 17, 10)


def test_what_is_not_http_is_told_so_in_openais_form() -> None:
    async def work() -> None:
        async with listening(Counted()) as address, Client(address) as client:
            await client.send(b"\x16\x03\x01 tls?\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 ") and code_of(answer) == "invalid_value"

    run(work)


class Streaming:
    """A stream of large events without an end; `ended` once its iterator is closed."""

    def __init__(self, deadline_s: float | None, size: int = 65536, pause_s: float = 0.0) -> None:
        self._deadline_s = deadline_s
        self._size, self._pause_s = size, pause_s
        self.ended = asyncio.Event()
        self.left = asyncio.Event()

    async def _events(self) -> Any:
        try:
            while True:
                yield sse(b"x" * self._size)
                await asyncio.sleep(self._pause_s)
        finally:
            self.ended.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        deadline = NEVER if self._deadline_s is None else Deadline.after(self._deadline_s)
        await EventStream(self._events(), deadline=deadline)(scope, receive, send)
        self.left.set()


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


def test_a_client_that_does_not_read_holds_nothing_past_its_deadline() -> None:
    async def work() -> None:
        app = Streaming(0.2)
        async with listening(app) as address, Client(address, narrow=True) as client:
            await client.send(post("/x", b""))
            async with asyncio.timeout(10):  # the deadline, and the grace of ending by itself
                await app.ended.wait()
                await app.left.wait()
            assert not (await client.rest()).endswith(DONE)

    run(work)


def test_a_client_that_does_not_read_is_cut_off_without_a_deadline_too() -> None:
    async def work() -> None:
        app = Streaming(None, size=1000)
        async with listening(app, Brisk) as address, Client(address, narrow=True) as client:
            await client.send(post("/x", b""))
            await app.ended.wait()

    run(work)


def test_a_client_that_reads_is_told_of_the_deadline() -> None:
    async def work() -> None:
        app = Streaming(0.1, size=10, pause_s=0.01)
        async with listening(app) as address, Client(address) as client:
            await client.send(post("/x", b"", "connection: close"))
            answer = await client.rest()
            assert answer.count(b"data: ") > 10 and answer.endswith(b"0\r\n\r\n")
            error = answer.split(b"data: ")[-2].partition(b"\n")[0]
            assert json.loads(error)["error"]["code"] == "deadline_exceeded"

    run(work)


def test_a_large_answer_that_is_not_read_does_not_keep_its_connection() -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await Response(b"x" * 10_000_000)(scope, receive, send)

    async def work() -> None:
        states: list[Any] = []

        class Noted(Brisk):
            def pause_writing(self) -> None:
                super().pause_writing()
                states.append(self)

        async with listening(large, Noted) as address, Client(address, narrow=True) as client:
            await client.send(post("/x", b""))
            await eventually(lambda: bool(states))
            assert states[0] in states[0].connections
            await eventually(lambda: states[0] not in states[0].connections)
            assert len(await client.rest()) < 10_000_000

    run(work)
