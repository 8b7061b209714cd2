"""Requests that come in a crowd begin by turns, each client's in turn."""

import asyncio
from collections.abc import Callable

import pytest
import uvicorn
from starlette.responses import Response

from protocol.errors import NotServing
from services.http.listener import Listener
from services.http.turns import Beginnings, SharedState, caller_key
from tests.support.listening import Client, run
from tests.support.waiting import eventually


class Loop:
    """Turns that the test makes, each of `took_s`."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.now = 0.0
        self.begun: list[str] = []
        self.gate = Beginnings(self.calls.append, lambda: self.now)

    def ask(self, caller: str) -> None:
        if self.gate.begin():
            self.begun.append(caller)
        else:
            self.gate.wait(caller.encode(), lambda: self.begun.append(caller))

    def turn(self, took_s: float = 0.003) -> list[str]:
        """Who has begun in it."""
        before = len(self.begun)
        self.now += took_s
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()
        return self.begun[before:]


def test_who_comes_alone_does_not_wait() -> None:
    loop = Loop()
    for _ in range(3):
        loop.ask("a")
        assert loop.begun == ["a"] and len(loop.gate) == 0
        loop.turn()
        assert not loop.calls, "nothing is called while nothing begins"
        loop.begun.clear()


def test_one_of_a_crowd_begins_after_the_other_and_no_other_waits_behind_it() -> None:
    loop = Loop()
    for _ in range(100):
        loop.ask("crowd")
    at_once = len(loop.begun)
    assert 0 < at_once < 20 and len(loop.gate) == 100 - at_once
    loop.ask("other")
    assert "other" in loop.turn()[:2]
    turns = 0
    while loop.gate:
        assert len(loop.turn()) <= at_once
        turns += 1
    assert loop.begun.count("crowd") == 100 and turns > 5


def test_a_long_turn_makes_the_next_ones_smaller_and_short_ones_larger_again() -> None:
    loop = Loop()
    for _ in range(400):
        loop.ask("a")
    sizes = [len(loop.turn(0.1)) for _ in range(6)]
    assert sizes[0] > sizes[1] > sizes[2] and sizes[-1] == 1
    sizes = [len(loop.turn(0.0001)) for _ in range(20)]
    assert sizes == sorted(sizes) and sizes[-1] > 10


@pytest.mark.parametrize(
    ("head", "caller"),
    [
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer k\r\n\r\n", b"Bearer k"),
        (b"POST / HTTP/1.1\r\nhost: x\r\nx-api-key:k\r\n\r\n", b"k"),
        (b"POST / HTTP/1.1\r\nx-authorization: k\r\n\r\n", b"10.0.0.1"),
        (b"POS", b"10.0.0.1"),
    ],
)
def test_a_caller_is_who_brings_a_key_or_an_address(head: bytes, caller: bytes) -> None:
    assert caller_key(head, "10.0.0.1") == caller


CROWD = 40
ASK = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"


async def answer(scope: object, receive: object, send: object) -> None:
    await Response("done")(scope, receive, send)  # type: ignore[arg-type]


class Busy(Beginnings):
    """No request begins until `open`."""

    def begin(self) -> bool:
        return False

    def open(self) -> None:
        while self._waiting:
            self._next()()


def test_connections_whose_turn_it_is_not_are_held_and_then_served() -> None:
    async def work() -> None:
        state = SharedState()
        gate = state.beginnings = Busy(asyncio.get_running_loop().call_soon)
        config = uvicorn.Config(answer, log_config=None, lifespan="off")
        server = await asyncio.get_running_loop().create_server(
            lambda: Listener(config, state, {}), "127.0.0.1", 0
        )
        address = server.sockets[0].getsockname()[:2]
        async with Client(address) as whole, Client(address) as parts:
            await whole.send(ASK)
            await parts.send(ASK[:9])
            async with Client(address) as gone:
                await gone.send(ASK)
                await eventually(lambda: len(gate) == 3)
            await parts.send(ASK[9:])
            gate.open()
            for client in (whole, parts):
                assert b"done" in await client.until(b"done")
            async with Client(address) as late:
                await late.send(ASK)
                await eventually(lambda: len(gate) == 1)
                for connection in list(state.connections):
                    connection.end(NotServing("enough"))  # type: ignore[union-attr]
                assert (await late.rest()).startswith(b"HTTP/1.1 503 ")
                gate.open()
        server.close()

    run(work)


def test_a_crowd_is_served_to_the_last_one() -> None:
    async def work() -> None:
        state = SharedState()
        config = uvicorn.Config(answer, log_config=None, lifespan="off")
        server = await asyncio.get_running_loop().create_server(
            lambda: Listener(config, state, {}), "127.0.0.1", 0
        )
        address = server.sockets[0].getsockname()[:2]

        async def one() -> None:
            async with Client(address) as client:
                for _ in range(2):
                    await client.send(ASK)
                    assert b"done" in await client.until(b"done")

        await asyncio.gather(*(one() for _ in range(CROWD)))
        server.close()

    run(work)
