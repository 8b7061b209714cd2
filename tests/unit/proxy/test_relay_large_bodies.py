"""Large bodies take room that others need."""

import asyncio

from tests.support.echoing import Echo, edge
from tests.support.listening import Client, post, run
from tests.support.waiting import eventually
from tests.unit.proxy.test_relay_request_parser import CHAT


def test_large_bodies_are_counted_until_their_requests_are_over() -> None:
    async def work() -> None:
        hot = Echo(gate=asyncio.Event())
        async with edge(hot) as address, Client(address) as one, Client(address) as two:
            await one.send(post(CHAT, b"a" * 600_000))
            await eventually(lambda: hot.bodies.held >= 600_000)
            await two.send(post(CHAT, b"b" * 600_000))
            status, answer = await two.answer()
            assert status == 503 and b"being received" in answer
            assert hot.gate is not None
            hot.gate.set()
            assert (await one.answer())[0] == 200
            await eventually(lambda: hot.bodies.held == 0 and hot.inside == 0)

    run(work)


def test_a_body_that_stalls_makes_room_for_others() -> None:
    async def work() -> None:
        hot = Echo()
        async with edge(hot) as address, Client(address) as silent, Client(address) as other:
            await silent.send(post(CHAT, b"a" * 900_000)[:800_000])
            await eventually(lambda: hot.bodies.held > 700_000)
            await asyncio.sleep(0.1)
            await other.send(post(CHAT, b"b" * 600_000))
            assert (await other.answer())[0] == 200
            assert (await silent.answer())[0] == 408
            await eventually(lambda: hot.bodies.held == 0)

    run(work)


def test_small_bodies_are_not_counted() -> None:
    async def work() -> None:
        hot = Echo(gate=asyncio.Event())
        async with edge(hot) as address, Client(address) as client:
            await client.send(post(CHAT, b"a" * 1000))
            await eventually(lambda: hot.inside == 1)
            assert hot.bodies.held == 0
            assert hot.gate is not None
            hot.gate.set()
            assert (await client.answer())[0] == 200

    run(work)
