"""Pictures in fleets whose workers do it all: who encodes them once their first encoder cannot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from protocol.errors import (
    InternalError,
    NotServing,
    Unavailable,
)
from protocol.generate import decode_encode
from protocol.generate_answers import EncodeAnswer
from protocol.types import EncodeOutput, GenerateRequest, MMItem
from tests.support.scripted_master import Master, over, placed_by, taken
from tests.support.scripted_workers import (
    TOKENS,
    Worker,
    asking,
)
from tests.support.waiting import eventually


async def encodes(body: bytes) -> bytes:
    wanted = decode_encode(body)
    outputs = [EncodeOutput(wanted.request_id, item.mm_hash, {}) for item in wanted.items]
    return msgspec.json.encode(EncodeAnswer(outputs))


async def gone(body: bytes) -> web.Response:
    error = Unavailable("it ends", code=NotServing.code)
    return web.json_response(error.to_openai(), status=503)


async def failing(body: bytes) -> web.Response:
    return web.json_response(InternalError("broken").to_openai(), status=500)


async def full(body: bytes) -> web.Response:
    return web.json_response(Unavailable("full", code="queue_full").to_openai(), status=503)


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
async def test_a_request_leaves_a_worker_that_is_gone_with_its_pictures(lost: str) -> None:
    """In a fleet whose workers do it all, a picture is encoded where its request is computed: no
    other place is looked for, so without that worker the whole request goes elsewhere."""

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    master, name = Master(["d0", "d1"], made_there=True), "a" * 64
    first, second = Worker(waiting, encode=gone), Worker(encode=encodes)
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    async with placed_by(master, first, second) as (stack, pipeline):
        stack.decode[0].up = lost == "meanwhile"
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        assert [one.avoid for one in master.asked] == [[], ["d0"]]
        assert [one.retry for one in master.asked] == [False, True]
        await eventually(lambda: len(over(master)) == 2)
        assert [one.failed for one in master.finished if one.stage == "request"] == [["d0"], []]


@pytest.mark.parametrize("answer", [gone, full, failing])
async def test_a_worker_that_does_it_all_encodes_what_its_holder_does_not_give(
    answer: Callable[[bytes], Awaitable[web.Response]],
) -> None:
    master, name = Master(["d1"], made_there=True, held_at="d0"), "a" * 64
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    async with placed_by(master, Worker(encode=answer), Worker(encode=encodes)) as (
        stack,
        pipeline,
    ):
        for worker in stack.decode:
            worker.does_all = True
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        assert len(master.asked) == 1


async def test_the_only_encoder_is_asked_once_and_then_the_worker_that_does_it_all() -> None:
    master, name = Master(["d0"]), "a" * 64
    request = asking(mm_items=[MMItem(name, "image", 0, 1)])
    workers = Worker(encode=encodes), Worker(encode=failing)
    async with placed_by(master, workers[0], encode=workers[1:]) as (stack, pipeline):
        stack.decode[0].does_all = True
        assert await taken(pipeline, request, {name: b"picture"}) == {0: TOKENS}
        await eventually(lambda: [len(worker.headers) for worker in workers] == [2, 1])
        await eventually(lambda: over(master) == ["r"])
        assert master.finished[-1].failed == []


async def test_a_request_that_waits_for_anothers_picture_blames_no_worker_of_its_own() -> None:
    """The encode that both wait for failed at the first one's worker."""
    asked, both_wait = asyncio.Event(), asyncio.Event()

    async def late(body: bytes) -> web.Response:
        asked.set()
        await both_wait.wait()
        return await failing(body)

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        if request.request_id == "b":
            both_wait.set()
        await asyncio.Event().wait()
        yield b""

    master, name = Master(["d0", "d1", "d1", "d1"], made_there=True), "a" * 64
    items = [MMItem(name, "image", 0, 1)]
    first, second = Worker(encode=late), Worker(encode=encodes)
    first.script = second.script = lambda request: waiting(request)
    async with placed_by(master, first, second) as (stack, pipeline):
        for worker in stack.decode:
            worker.does_all = True

        async def one(request_id: str) -> None:
            await taken(pipeline, asking(request_id, mm_items=items), {name: b"picture"})

        both = [asyncio.create_task(one("a"))]
        await asked.wait()
        both.append(asyncio.create_task(one("b")))
        await eventually(lambda: len(master.asked) == 4)
        assert sorted((one.avoid for one in master.asked[2:]), key=len) == [[], ["d0"]]
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
