"""Requests at which the only worker of a role always fails: they fail alone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from protocol.errors import TriptychError
from protocol.request_record import RequestRecord
from protocol.types import GenerateRequest, MMItem
from proxy.tokens.pipeline import Timeline
from tests.support.listening import run
from tests.support.relay_failures import saying
from tests.support.relay_workers import Relayed, data_url, pictures, relaying, text
from tests.support.scripted_workers import TOKENS, Stack, Worker, asking, before, gather, plainly

NAMES = [f"{number:064x}" for number in range(2)]
BROKEN = saying(b'{"error":{"message":"it broke","code":500}}', status=500)
CLOSELY = ("--breaker-failures", "5")


def failing() -> web.Response:
    return web.json_response({"error": {"message": "it broke"}}, status=500)


async def poisoned(request: GenerateRequest) -> AsyncIterator[bytes]:
    if request.request_id.startswith("poison"):
        raise web.HTTPInternalServerError
    async for data in plainly(request):
        yield data


async def fails(stack: Stack, request: GenerateRequest, media: Any = None, **more: Any) -> None:
    with pytest.raises(TriptychError):
        async for _ in stack.gateway.pipeline.run(request, media or {}, **more):
            pass


async def test_two_of_them_leave_the_worker_to_others() -> None:
    async with before(decode=[Worker(poisoned)]) as stack:
        for number in range(2):
            await fails(stack, asking(f"poison{number}"))
        found: dict[int, list[int]] = {}
        async for outputs in stack.gateway.pipeline.run(asking("innocent"), {}):
            gather(outputs, found)
        assert found == {0: TOKENS}


async def test_prompts_of_one_request_charge_together() -> None:
    async with before(decode=[Worker(poisoned)]) as stack:
        record = RequestRecord()
        for number in range(6):
            timeline = Timeline(stack.gateway.metrics, record)
            await fails(stack, asking(f"poison{number}"), timeline=timeline)
        assert stack.decode[0].breaker.failures == 1


async def test_so_do_pictures_in_every_attempt() -> None:
    asked = 0

    async def bad(body: bytes) -> web.Response:
        nonlocal asked
        asked += 1
        return failing()

    async def waiting(request: GenerateRequest) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with before(encode=[Worker(encode=bad)], decode=[Worker(waiting)]) as stack:
        items = [MMItem(name, "image", i, 1) for i, name in enumerate(NAMES)]
        await fails(stack, asking(mm_items=items), dict.fromkeys(NAMES, b"picture"))
        assert asked > 4
        assert stack.fleet.encode[0].breaker.failures == 1


async def served(relayed: Relayed, body: Any) -> int:
    status, _ = await relayed.post(body)
    return status


def test_two_relayed_ones_leave_the_worker_to_others() -> None:
    async def work() -> None:
        async with relaying("D", *CLOSELY) as relayed:
            (worker,) = relayed.workers["decode"]
            worker.script = [BROKEN] * 8
            assert [await served(relayed, text()) for _ in range(3)] == [502, 502, 200]
            assert len(worker.asked) == 9

    run(work)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/pooling"])
def test_relayed_pictures_charge_an_encoder_once(path: str) -> None:
    async def work() -> None:
        async with relaying("ED", *CLOSELY) as relayed:
            (worker,) = relayed.workers["encode"]
            worker.script = [BROKEN] * 99
            body = pictures(*(data_url(name) for name in "ab"))
            status, _ = await relayed.post(body, path=path)
            assert status == 502 and len(worker.asked) > 4
            assert relayed.gateway.fleet.encode[0].breaker.failures == 1

    run(work)
