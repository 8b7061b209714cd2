"""How a server ends: its states, and what becomes of requests; on real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from services.http import errors
from services.http.bodies import read_body
from services.http.lame_duck import LameDuck
from services.http.server import bind, serve
from services.http.streams import EventStream, while_connected
from tests.support.listening import Client, code_of, post, run
from tests.support.waiting import eventually

LONG_S = 1000.0


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def busy() -> bool:
    return True


async def test_the_first_signal_begins_and_the_delay_passes() -> None:
    life = LameDuck(drain_delay_s=LONG_S)
    over = asyncio.create_task(life.over())
    await turns()
    assert not life.draining and not over.done()
    life.signal()
    await turns()
    assert life.draining and not life.hurried and not life.closing.is_set() and not over.done()
    over.cancel()
    quick = LameDuck(drain_delay_s=0.0)
    quick.signal()
    await asyncio.wait_for(quick.over(), 5)


async def test_the_second_signal_ends_the_delay_and_all_patience() -> None:
    life = LameDuck(LONG_S, LONG_S)
    life.signal()
    life.signal()
    await asyncio.wait_for(life.over(), 5)
    assert not await asyncio.wait_for(life.finished(busy), 5)
    await asyncio.wait_for(life.told(busy), 5)


async def test_what_is_under_way_has_its_time_and_no_more() -> None:
    under_way = [1]
    life = LameDuck(0.0, LONG_S)
    finished = asyncio.create_task(life.finished(lambda: bool(under_way)))
    await turns()
    assert life.draining and life.closing.is_set() and not finished.done()
    under_way.clear()
    assert await asyncio.wait_for(finished, 5)
    assert not await LameDuck(0.0, 0.0).finished(busy)


async def test_a_signal_while_requests_end_gives_them_up() -> None:
    life = LameDuck(0.0, LONG_S)
    life.signal()
    finished = asyncio.create_task(life.finished(busy))
    await turns()
    assert not finished.done()
    life.signal()
    assert not await asyncio.wait_for(finished, 5)


class Served:
    """An application whose answers wait for `gate`; `inside` counts those that do."""

    def __init__(self, life: LameDuck) -> None:
        self.life = life
        self.gate = asyncio.Event()
        self.inside = 0
        self.app = FastAPI()
        errors.install(self.app, lambda error: None)
        self.app.get("/quick")(self.quick)
        self.app.post("/whole")(self.whole)
        self.app.post("/stream")(self.stream)

    async def quick(self) -> Response:
        return Response("quick")

    async def whole(self, request: Request) -> Response:
        await read_body(request, 1 << 20)
        await while_connected(request, self._wait())
        return Response("whole")

    async def stream(self, request: Request) -> Response:
        return EventStream(self._events())

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield b"data: first\n\n"
        await self._wait()
        yield b"data: last\n\n"

    async def _wait(self) -> None:
        self.inside += 1
        try:
            await self.gate.wait()
        finally:
            self.inside -= 1


@contextlib.asynccontextmanager
async def served(life: LameDuck) -> AsyncIterator[tuple[Served, tuple[str, int]]]:
    made, ready = Served(life), asyncio.Event()

    @contextlib.asynccontextmanager
    async def during() -> AsyncIterator[None]:
        ready.set()
        yield

    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        app: ASGIApp = made.app
        serving = asyncio.create_task(serve(app, listener, "test", during=during(), life=life))
        await ready.wait()
        yield made, address
        life.signal()
        await asyncio.wait_for(serving, 15)


def going_on(work: Callable[[Served, Any], Any], life: LameDuck) -> None:
    async def whole() -> None:
        async with served(life) as (made, address):
            await work(made, address)

    run(whole)


GET = b"GET /quick HTTP/1.1\r\nhost: x\r\n\r\n"


def test_while_it_drains_requests_are_served_on_connections_that_end() -> None:
    async def work(made: Served, address: Any) -> None:
        async with Client(address) as kept, Client(address) as new:
            await kept.send(GET)
            assert b"connection: close" not in await kept.until(b"quick")
            made.life.signal()
            await turns()
            for client in (kept, new):
                await client.send(GET)
                answer = await client.rest()
                assert answer.endswith(b"quick") and b"connection: close" in answer

    going_on(work, LameDuck(LONG_S, LONG_S))


def test_what_is_under_way_ends_after_the_port_is_closed() -> None:
    async def work(made: Served, address: Any) -> None:
        async with Client(address) as idle, Client(address) as one, Client(address) as two:
            await idle.send(GET)
            await idle.until(b"quick")
            await one.send(post("/stream", b""))
            await one.until(b"first")
            await two.send(post("/whole", b"12")[:-1])
            made.life.signal()
            assert await idle.rest() == b""
            with contextlib.suppress(ConnectionError):
                async with Client(address) as late:
                    assert await late.rest() == b"", "the port is closed"
            await two.send(b"2")
            await eventually(lambda: made.inside == 2)
            made.gate.set()
            assert b"data: last" in await one.rest()
            assert (await two.rest()).endswith(b"whole")

    going_on(work, LameDuck(0.0, LONG_S))


def test_what_does_not_end_in_time_is_told_so() -> None:
    async def work(made: Served, address: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stream, whole, arriving, silent = [
                await stack.enter_async_context(Client(address)) for _ in range(4)
            ]
            await stream.send(post("/stream", b""))
            await whole.send(post("/whole", b"12"))
            await arriving.send(post("/whole", b"12")[:-1])
            await eventually(lambda: made.inside == 2)
            made.life.signal()
            event, done = (await stream.rest()).split(b"data: ")[-2:]
            assert json.loads(event.split(b"\r\n")[0])["error"]["code"] == "not_serving"
            assert done.startswith(b"[DONE]") and done.endswith(b"0\r\n\r\n")
            for client in (whole, arriving):
                answer = await client.rest()
                assert answer.startswith(b"HTTP/1.1 503 ") and code_of(answer) == "not_serving"
            assert await silent.rest() == b""
            await eventually(lambda: made.inside == 0)

    going_on(work, LameDuck(0.0, 0.2))


async def test_others_have_time_to_fetch_and_it_is_taken_from_the_rest() -> None:
    kept = [1]

    async def needed() -> bool:
        return bool(kept)

    life = LameDuck(0.0, LONG_S)
    handing = asyncio.create_task(life.handed_over(needed))
    await turns()
    assert life.draining and not life.closing.is_set() and not handing.done()
    kept.clear()
    assert await asyncio.wait_for(handing, 5)
    kept.append(1)
    short = LameDuck(0.0, 0.01)
    assert not await asyncio.wait_for(short.handed_over(needed), 5)
    assert not await asyncio.wait_for(short.finished(busy), 5), "none of it is left"
    hurried = LameDuck(0.0, LONG_S)
    hurried.signal()
    hurried.signal()
    assert not await asyncio.wait_for(hurried.handed_over(needed), 5)


async def test_the_time_is_over_though_an_answer_came_with_its_end() -> None:
    """As from a query that takes the cancellation for its own time limit's."""

    async def needed() -> bool:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG_S)
        return True

    assert not await asyncio.wait_for(LameDuck(0.0, 0.01).handed_over(needed), 5)


async def test_the_time_is_over_though_no_engine_says_what_is_kept() -> None:
    assert not await asyncio.wait_for(LameDuck(0.0, 0.01).handed_over(asyncio.Event().wait), 5)
