"""Requests for vectors and scores: encode beside prefill, and nothing is decoded."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from protocol.errors import ConfigError, TriptychError, UpstreamError
from protocol.generate_answers import ChoiceBody, GenerateAnswer, UsageBody
from protocol.pooling import PoolingParams, unpacked
from protocol.types import GenerateRequest, SamplingParams
from proxy.config import ProxyConfig
from proxy.fleet.fleet import Fleet
from proxy.fleet.from_flags import make_fleet
from proxy.placement.own_view import by_load
from proxy.placement.planner import ModelNames, need_of
from tests.support.listening import run
from tests.support.scripted_workers import Stack, Worker, before
from tests.support.vectors import packed
from tests.support.waiting import eventually

VECTOR = [0.5, -0.25]
Whole = Callable[[GenerateRequest], Awaitable[bytes | web.Response]]


def wanted(name: str = "r", dimensions: int = 2) -> GenerateRequest:
    params = PoolingParams("embed", dimensions)
    return GenerateRequest(name, [5, 6], SamplingParams(max_tokens=1), pooling=params)


def answering(vector: bytes = packed(VECTOR), **choice: object) -> Whole:
    async def whole(request: GenerateRequest) -> bytes:
        fields = {"token_ids": [], "finish_reason": "stop", **choice}
        choices = [ChoiceBody(0, pooled=vector, **fields)]  # type: ignore[arg-type]
        usage = UsageBody(2, 0, 1)
        return msgspec.json.encode(GenerateAnswer(request.request_id, choices, usage))

    return whole


async def failing(request: GenerateRequest) -> web.Response:
    return web.json_response({"error": {"message": "no", "type": "t"}}, status=500)


async def pooled(stack: Stack, request: GenerateRequest) -> list[float]:
    vectors = [
        output.pooled
        async for outputs in stack.gateway.pipeline.run(request, {})
        for output in outputs
    ]
    (vector,) = vectors
    return unpacked(vector)


def test_a_prefill_worker_answers_and_no_decode_worker_is_asked() -> None:
    async def work() -> None:
        prefill, decode = Worker(whole=answering()), Worker()
        async with before(prefill=[prefill], decode=[decode]) as stack:
            assert await pooled(stack, wanted()) == VECTOR
            (call,) = prefill.calls
            assert call.pooling == PoolingParams("embed", 2) and call.deadline_s is not None
            assert not decode.calls and not prefill.aborts
            assert stack.breaker(stack.fleet.prefill[0]).successes == 1

    run(work)


def test_a_worker_that_fails_is_left_for_another() -> None:
    async def work() -> None:
        first, second = Worker(whole=failing), Worker(whole=answering())
        async with before(prefill=[first, second], decode=[Worker()]) as stack:
            for turn in range(2):
                assert await pooled(stack, wanted(f"r{turn}")) == VECTOR
            assert first.calls and len(second.calls) == 2

    run(work)


def test_without_prefill_workers_those_that_decode_answer() -> None:
    async def work() -> None:
        decode = Worker(whole=answering())
        async with before(decode=[decode]) as stack:
            assert await pooled(stack, wanted()) == VECTOR

    run(work)


@pytest.mark.parametrize(
    "whole",
    [
        answering(b""),
        answering(packed([1.0])),
        answering(packed([1.0, 2.0, 3.0])),
        answering(token_ids=[5]),
        answering(finish_reason=None),
    ],
)
def test_an_answer_that_is_not_the_vector_is_the_workers_fault(whole: Whole) -> None:
    async def work() -> None:
        bad, good = Worker(whole=whole), Worker(whole=answering())
        async with before(prefill=[bad, good], decode=[Worker()]) as stack:
            for turn in range(2):
                assert await pooled(stack, wanted(f"r{turn}")) == VECTOR
            assert bad.calls
        async with before(decode=[bad], flags=("--max-retries", "0")) as stack:
            with pytest.raises(UpstreamError):
                await pooled(stack, wanted())

    run(work)


def test_what_a_worker_refuses_is_the_requests_own_fault() -> None:
    async def refusing(request: GenerateRequest) -> web.Response:
        error = {"message": "model: it generates text", "type": "t", "param": "model"}
        return web.json_response({"error": error}, status=400)

    async def work() -> None:
        first, second = Worker(whole=refusing), Worker(whole=refusing)
        async with before(prefill=[first, second], decode=[Worker()]) as stack:
            with pytest.raises(TriptychError) as caught:
                await pooled(stack, wanted())
            assert caught.value.status == 400 and "generates text" in caught.value.message
            assert len(first.calls) + len(second.calls) == 1

    run(work)


def test_a_client_that_leaves_ends_the_call() -> None:
    async def work() -> None:
        ended = asyncio.Event()

        async def waiting(request: GenerateRequest) -> bytes:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.set()
                raise
            return b""

        worker = Worker(whole=waiting)
        async with before(prefill=[worker], decode=[Worker()]) as stack:
            task = asyncio.ensure_future(pooled(stack, wanted()))
            await eventually(lambda: bool(worker.calls))
            task.cancel()
            await asyncio.wait_for(ended.wait(), 5)
            await asyncio.wait({task})
            assert stack.fleet.prefill[0].in_flight == 0

    run(work)


def test_prefill_workers_come_first_unless_they_have_failed() -> None:
    fleet = Fleet.from_urls("", "http://p0,http://p1", "http://d0")
    for _ in range(4):
        plan = by_load(fleet, 1, (), pooling=True)
        assert plan.prefill is None and plan.decode in fleet.prefill
    assert by_load(fleet, 1, fleet.prefill[:1], pooling=True).decode is fleet.prefill[1]
    assert by_load(fleet, 1, fleet.prefill, pooling=True).decode is fleet.decode[0]


def test_a_master_is_told_that_nothing_is_decoded() -> None:
    assert need_of(wanted(), ModelNames()).pooling
    text = GenerateRequest("r", [5], SamplingParams())
    assert not need_of(text, ModelNames()).pooling


def test_workers_that_prefill_are_enough_for_a_model_of_vectors() -> None:
    config = ProxyConfig(prefill_servers_urls="http://p0")
    assert make_fleet(config, pools=True).prefill
    with pytest.raises(ConfigError, match="--decode-servers-urls"):
        make_fleet(config)
    with pytest.raises(ConfigError, match="--prefill-servers-urls"):
        make_fleet(ProxyConfig(), pools=True)
