"""Encoders that are late, full or say what cannot be: others are asked, and who is at fault is
charged with it."""

import asyncio
import math
from typing import Any

import msgspec
import pytest
from aiohttp import web

from protocol.errors import DeadlineExceeded, error_info
from protocol.generate import decode_encode
from protocol.generate_answers import EncodeAnswer
from protocol.types import EncodeOutput, MMItem
from proxy.placement.planner import Plan
from proxy.request_state import Tries
from tests.support.scripted_workers import Worker, asking, before

DEEP = b"[" * 100_000
NAMES = [f"{number:064x}" for number in range(100)]  # of pictures


def encoded(wanted_body: bytes, kind: str) -> bytes:
    wanted = decode_encode(wanted_body)
    (item,) = wanted.items
    outputs = {
        "right": [EncodeOutput(wanted.request_id, item.mm_hash, {})],
        "none": [],
        "another": [EncodeOutput(wanted.request_id, "b" * 64, {})],
        "neither": [EncodeOutput(wanted.request_id, item.mm_hash)],
    }.get(kind)
    return DEEP if outputs is None else msgspec.json.encode(EncodeAnswer(outputs))


@pytest.mark.parametrize("kind", ["none", "another", "neither", "deep"])
async def test_an_encoder_that_answers_nonsense_is_left_alone_in_the_end(kind: str) -> None:
    async def bad(body: bytes) -> bytes:
        return encoded(body, kind)

    async def good(body: bytes) -> bytes:
        return encoded(body, "right")

    workers = [Worker(encode=bad), Worker(encode=good)]
    async with before(encode=workers, decode=[Worker()]) as stack:
        first, second = stack.fleet.encode
        for number, name in enumerate([n for n in NAMES if stack.fleet.by_content(n) is first][:4]):
            first.suspect = False  # as after a probe
            request = asking(f"r{number}", mm_items=[MMItem(name, "image", 0, 1)])
            async for _ in stack.gateway.pipeline.run(request, {name: b"picture"}):
                pass
            async with asyncio.timeout(20):
                while stack.gateway.pipeline.stages.encode_stage.busy:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        assert stack.breaker(first).successes == 0 and first.breaker.failures == 4
        assert (stack.breaker(second).successes, stack.breaker(second).failures) == (4, 0)


async def never(body: bytes) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def too_late(body: bytes) -> bytes:
    wanted = decode_encode(body)
    late = DeadlineExceeded("the request's deadline passed before the picture was encoded")
    name = wanted.items[0].mm_hash
    output = EncodeOutput(wanted.request_id, name, error=error_info(late))
    return msgspec.json.encode(EncodeAnswer([output]))


@pytest.mark.parametrize("late", [never, too_late])
async def test_an_encoder_that_is_late_is_charged_and_another_one_asked(late: Any) -> None:
    """An encode call has a deadline; the proxy or the encoder says that it has passed."""

    async def good(body: bytes) -> bytes:
        return encoded(body, "right")

    workers = [Worker(encode=late), Worker(encode=good)]
    flags = ("--encode-timeout", "1", "--video-timeout", "0.5")
    async with before(encode=workers, decode=[Worker()], flags=flags) as stack:
        first, second = stack.fleet.encode
        name = next(n for n in NAMES if stack.fleet.by_content(n) is first)
        request = asking(mm_items=[MMItem(name, "image", 0, 1)])
        encoding = stack.gateway.pipeline.stages.encode_stage
        plan, tries = Plan(stack.decode[0], encoders={name: first}), Tries(deadline=math.inf)
        await encoding.run(request, {name: b"picture"}, plan, tries, lambda *_: None)
        assert first.suspect and first.breaker.failures == 1
        assert tries.record.workers("encode") == [second.url]
        assert stack.fleet.by_content(name) is second, "where the next attempt would go"


async def test_an_encoder_that_is_full_is_not_asked_again() -> None:
    """Nothing speaks against it, so that only the request itself knows where not to come back."""
    asked: list[str] = []

    async def full(body: bytes) -> web.Response:
        asked.append("full")
        error = {"message": "the queue is full", "type": "overloaded", "code": "overloaded"}
        return web.json_response({"error": error}, status=503)

    async def good(body: bytes) -> bytes:
        asked.append("good")
        return encoded(body, "right")

    workers = [Worker(encode=full), Worker(encode=good)]
    async with before(encode=workers, decode=[Worker()]) as stack:
        first, second = stack.fleet.encode
        name = next(n for n in NAMES if stack.fleet.by_content(n) is first)
        request = asking(mm_items=[MMItem(name, "image", 0, 1)])
        encoding = stack.gateway.pipeline.stages.encode_stage
        plan, tries = Plan(stack.decode[0], encoders={name: first}), Tries(deadline=math.inf)
        async with asyncio.timeout(10):
            await encoding.run(request, {name: b"picture"}, plan, tries, lambda *_: None)
        assert asked == ["full", "good"]
        assert not first.suspect and first.breaker.failures == 0 and first.up
        assert tries.record.workers("encode") == [second.url]
