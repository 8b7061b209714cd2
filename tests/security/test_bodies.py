"""However much clients send at once, what is held is bounded, and no client keeps others out."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from protocol.errors import Unavailable
from services.http import errors
from services.http.bodies import Bodies
from services.http.listener import Listener
from services.http.turns import LARGE, BodyTurns
from tests.support.listening import Client, code_of, listening, post, run
from tests.support.waiting import eventually


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bodies_are_counted_until_they_are_let_go_of() -> None:
    bodies = Bodies(100, 100)
    one, two = (bodies.open(lambda: None) for _ in range(2))
    one.add(60)
    two.add(40)
    with pytest.raises(Unavailable) as caught:
        two.add(1)
    assert caught.value.retry_after_s and bodies.held == 100
    one.close()
    one.close()
    two.add(60)
    two.close()
    assert bodies.held == 0


def test_the_silent_ones_make_room() -> None:
    """The longest silent first; not those that are complete, nor the one that asks."""
    clock, gone = Clock(), []
    bodies = Bodies(100, 100, stall_s=5.0, clock=clock)
    claims = {}
    for name in ("complete", "oldest", "silent", "alive"):
        claims[name] = bodies.open(lambda name=name: gone.append(name))
        claims[name].add(25)
        clock.now += 1.0
    claims["complete"].complete()
    asking = bodies.open(lambda: gone.append("asking"))
    with pytest.raises(Unavailable):
        asking.add(10)
    clock.now += 4.0
    claims["alive"].add(0)
    asking.add(10)
    assert gone == ["oldest"] and bodies.held == 85
    asking.add(40)
    assert gone == ["oldest", "silent"] and bodies.held == 100
    with pytest.raises(Unavailable):
        claims["oldest"].add(1)  # its room is another's
    with pytest.raises(Unavailable):
        asking.add(1)
    for claim in (*claims.values(), asking):
        claim.close()
    assert bodies.held == 0


def app_with(bodies: Bodies, inside: list[int], leave: asyncio.Event) -> FastAPI:
    app = FastAPI()

    @app.post("/")
    async def take(request: Request) -> Response:
        async with bodies.read(request) as body:
            inside.append(len(body))
            await leave.wait()
        return Response(json.dumps(len(body)))

    errors.install(app, lambda error: None)
    return app


def test_what_does_not_fit_is_refused_and_the_rest_goes_on() -> None:
    async def work() -> None:
        inside: list[int] = []
        leave, bodies = asyncio.Event(), Bodies(100_000, 150_000)
        app = app_with(bodies, inside, leave)
        async with listening(app, Listener) as address, Client(address) as one:
            await one.send(post("/", b"x" * 90_000))
            await eventually(lambda: inside == [90_000])
            async with Client(address) as two:
                await two.send(post("/", b"x" * 90_000))
                head = await two.until(b"\r\n\r\n")
                assert b" 503 " in head and b"retry-after: 1" in head
            async with Client(address) as three:
                await three.send(post("/", b"x" * 110_000))
                assert (await three.answer())[0] == 413
            leave.set()
            assert await one.answer() == (200, b"90000")
            await eventually(lambda: bodies.held == 0)

    run(work)


def test_clients_that_fall_silent_do_not_keep_others_out() -> None:
    async def work() -> None:
        inside: list[int] = []
        leave, clock = asyncio.Event(), Clock()
        bodies = Bodies(100_000, 150_000, stall_s=5.0, clock=clock)
        leave.set()
        app = app_with(bodies, inside, leave)
        async with listening(app, Listener) as address, Client(address) as silent:
            await silent.send(post("/", b"x" * 90_000)[:-1])
            await eventually(lambda: bodies.held > 80_000)
            clock.now += 6.0
            async with Client(address) as other:
                await other.send(post("/", b"x" * 90_000))
                assert await other.answer() == (200, b"90000")
            status, body = await silent.answer()
            assert (status, code_of(body)) == (408, "request_timeout")
            await eventually(lambda: bodies.held == 0)

    run(work)


def test_a_client_that_leaves_lets_go() -> None:
    async def work() -> None:
        inside: list[Any] = []
        bodies = Bodies(100_000, 150_000)
        app = app_with(bodies, inside, asyncio.Event())
        async with listening(app, Listener) as address:
            async with Client(address) as leaving:
                await leaving.send(post("/", b"x" * 90_000)[:-1])
                await eventually(lambda: bodies.held > 80_000)
            await eventually(lambda: bodies.held == 0)

    run(work)


def test_large_bodies_are_taken_in_by_turns() -> None:
    """A loop that eight of them keep busy has time for others between two pieces."""

    async def work() -> None:
        bodies = Bodies(64 << 20, 64 << 20)
        turns: list[asyncio.Future[None]] = []

        async def turn() -> None:
            turns.append(asyncio.get_running_loop().create_future())
            await turns[-1]

        bodies.intake.turn = turn  # type: ignore[method-assign]
        size = LARGE + (1 << 21)
        leave = asyncio.Event()
        app = app_with(bodies, [], leave)
        async with listening(app, Listener) as address, Client(address) as client:
            sending = asyncio.create_task(client.send(post("/", bytes(size))))
            await eventually(lambda: bool(turns))
            held = bodies.held
            assert LARGE < held < size
            await asyncio.sleep(0.05)
            assert bodies.held == held, "nothing more is read"
            leave.set()
            answer = asyncio.create_task(client.answer())
            while not answer.done():
                if not turns[-1].done():
                    turns[-1].set_result(None)
                await asyncio.sleep(0)
            await sending
            assert answer.result() == (200, str(size).encode())

    run(work)


def test_each_piece_has_a_turn_of_the_loop_to_itself() -> None:
    async def work() -> None:
        loop, intake = asyncio.get_running_loop(), BodyTurns()
        turns, pieces = [0], list[int]()

        def count() -> None:
            turns[0] += 1
            loop.call_soon(count)

        count()
        for _ in range(3):
            intake.wait(lambda: pieces.append(turns[0]))
        waiting = [asyncio.create_task(intake.turn()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.gather(waiting[0], waiting[2])
        assert len(pieces) == 3 and pieces == sorted(set(pieces))

    run(work)
