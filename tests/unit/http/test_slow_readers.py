"""Clients that do not take their answers; on real sockets."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.http.client_bounds import Pace
from services.http.listener import Listener
from services.http.streams import DONE, NEVER, Deadline, EventStream, sse
from tests.support.listening import Client, listening, post, run
from tests.support.waiting import eventually


class Brisk(Listener):
    pace = Pace(grace_s=0.3, bytes_per_s=1e9)


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
            # one that was told before the deadline at least, the error, the end mark
            assert answer.count(b"data: ") >= 3 and answer.endswith(b"0\r\n\r\n")
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


def test_a_client_that_does_not_read_holds_no_place_in_a_crowd() -> None:
    """Each look at a full server asks every connection for its place."""

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await Response(b"x" * 10_000_000, headers={"connection": "close"})(scope, receive, send)

    async def work() -> None:
        made: list[Brisk] = []

        class Noted(Brisk):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                made.append(self)

        async with listening(large, Noted) as address, Client(address, narrow=True) as client:
            await client.send(post("/x", b""))
            await eventually(lambda: bool(made) and made[0].transport.is_closing())
            async with asyncio.timeout(20):  # of which the client has 0.3 s
                while made[0] in made[0].connections:
                    made[0].give_way()
                    await asyncio.sleep(0.02)

    run(work)


def test_an_error_that_no_one_foresaw_is_told_at_the_end_of_a_stream() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield sse(b"one")
        raise KeyError("secret")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await EventStream(events())(scope, receive, send)

    async def work() -> None:
        async with listening(app) as address, Client(address) as client:
            await client.send(post("/x", b"", "connection: close"))
            answer = await client.rest()
        assert answer.count(b"data: ") == 3 and answer.endswith(b"0\r\n\r\n")
        one, error, done = (one.partition(b"\n")[0] for one in answer.split(b"data: ")[1:])
        assert one == b"one" and done == b"[DONE]" and b"secret" not in error
        assert json.loads(error)["error"]["type"] == "server_error"

    run(work)
