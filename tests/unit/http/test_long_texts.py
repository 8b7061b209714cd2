"""Long texts that clients only ask about: few at once, on all routes together."""

import asyncio
import threading

import msgspec

from services.frontend.render import Frontend
from services.http.long_texts import LongTexts
from tests.support.listening import Client, post, run
from tests.support.openai_server import Server, asking
from tests.support.waiting import eventually

LONG = {"prompt": "Hello, world " * 2_000}
ROUTES = ("/tokenize", "/tokenizer/encode")


class Told(msgspec.Struct):
    at: int


class Held:
    """Work that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.end = threading.Event()

    def work(self) -> Told:
        self.begun.set()
        assert self.end.wait(20)
        return Told(1)


def waiting(texts: LongTexts) -> int:
    return len(texts._threads._room._waiters or ())


def test_routes_share_the_places(front: Frontend) -> None:
    async def work() -> None:
        server, held = Server(front, room=100, texts=LongTexts(at_once=1)), Held()
        async with asking(server) as (ask, _):
            first = asyncio.ensure_future(server.texts._threads.run(held.work))
            asked = [asyncio.ensure_future(ask(path, LONG)) for path in 4 * ROUTES]
            await eventually(lambda: waiting(server.texts) == len(asked))
            # Short ones need no place, and others of the threads are free.
            assert (await ask("/tokenizer/encode", {"prompt": "Hello"}))[0] == 200
            await asyncio.to_thread(held.begun.wait, 20)
            held.end.set()
            assert [status for status, _ in await asyncio.gather(*asked)] == [200] * len(asked)
            assert await first == Told(1)
            assert waiting(server.texts) == server.inside == 0

    run(work)


def test_a_client_that_leaves_gives_up_its_turn(front: Frontend) -> None:
    async def work() -> None:
        server, held = Server(front, room=100, texts=LongTexts(at_once=1)), Held()
        async with asking(server) as (_, address):
            first = asyncio.ensure_future(server.texts._threads.run(held.work))
            for path in ROUTES:
                async with Client(address) as client:
                    await client.send(post(path, LONG))
                    await eventually(lambda: waiting(server.texts) == 1)
                await eventually(lambda: waiting(server.texts) == server.inside == 0)
            held.end.set()
            await first

    run(work)


def test_a_thread_keeps_its_place_when_its_client_has_left() -> None:
    async def work() -> None:
        texts, held, next_one = LongTexts(at_once=1), Held(), Held()
        left = asyncio.ensure_future(texts._threads.run(held.work))
        await asyncio.to_thread(held.begun.wait, 20)
        left.cancel()
        await asyncio.wait({left})
        later = asyncio.ensure_future(texts._threads.run(next_one.work))
        await eventually(lambda: waiting(texts) == 1)
        assert left.cancelled() and not next_one.begun.is_set()
        held.end.set()
        next_one.end.set()
        assert await later == Told(1)

    run(work)
