"""A request that succeeds is a success for its workers, and leaves nothing behind, even though its
reader takes the last token and goes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from protocol.generate_answers import ChoiceBody
from protocol.types import GenerateRequest
from tests.support.scripted_workers import (
    DONE,
    TOKENS,
    WAYS,
    Script,
    Stack,
    Worker,
    asking,
    before,
    event,
    fleet_of,
    gather,
    handing_over,
    place_ahead,
    plainly,
    steps_of,
)
from tests.support.waiting import eventually


async def taken(stack: Stack, request: GenerateRequest) -> dict[int, list[int]]:
    """Tokens of a reader that leaves with the last one, as an answer does."""
    found: dict[int, list[int]] = {}
    async with aclosing(stack.gateway.pipeline.run(request, {})) as steps:
        async for outputs in steps:
            gather(outputs, found)
            if all(len(tokens) == len(TOKENS) for tokens in found.values()):
                break
    return found


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_each_worker_has_one_success_and_keeps_its_connection(way: str, n: int) -> None:
    stages = fleet_of(way)
    async with before(**stages) as stack:
        place_ahead(stack, way)
        for instance in stack.fleet.all():
            instance.breaker.failures = 3
        for number in range(4):
            expected = dict.fromkeys(range(n), TOKENS)
            assert await taken(stack, asking(f"r{number}", n)) == expected
            for instance in stack.fleet.all():
                breaker = stack.breaker(instance)
                assert (breaker.failures, breaker.successes) == (0, number + 1)
                assert instance.in_flight == 0
        for workers in stages.values():
            assert [len(worker.connections) for worker in workers] == [1]
            assert [worker.left for worker in workers] == [0]
        await eventually(lambda: not stack.gateway.client._beside)
        assert not any(worker.aborts for workers in stages.values() for worker in workers)


async def test_a_worker_that_failed_before_is_tried_and_trusted_again() -> None:
    async with before(decode=[Worker()]) as stack:
        (instance,) = stack.decode
        for _ in range(instance.breaker.threshold):
            instance.breaker.failed(time.monotonic() - 60.0)
        assert not instance.breaker.closed and instance.breaker.admits(time.monotonic())
        await taken(stack, asking())
        assert instance.breaker.closed


async def test_the_last_token_does_not_wait_for_the_end_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy.upstream.client._LEFTOVER_S", 60.0)
    ending = asyncio.Event()

    async def slowly(request: GenerateRequest) -> AsyncIterator[bytes]:
        for data in steps_of(request):
            yield data
        await ending.wait()
        yield b"data: [DONE]\n\n"

    worker = Worker(slowly)
    async with before(decode=[worker]) as stack:
        assert await taken(stack, asking()) == {0: TOKENS}
        assert stack.breaker(stack.decode[0]).successes == 1
        ending.set()
        await eventually(lambda: not stack.gateway.client._beside)
        worker.script = plainly
        await taken(stack, asking("again"))
        assert len(worker.connections) == 1


async def test_a_stream_without_an_end_costs_its_connection_alone() -> None:
    async def endless(request: GenerateRequest) -> AsyncIterator[bytes]:
        for data in steps_of(request):
            yield data
        await asyncio.Event().wait()

    worker = Worker(endless)
    async with before(decode=[worker]) as stack:
        assert await taken(stack, asking()) == {0: TOKENS}
        await eventually(lambda: worker.left == 1)
        assert stack.breaker(stack.decode[0]).successes == 1


def dying(tokens: int) -> Script:
    """A worker that dies after so many tokens."""

    async def script(request: GenerateRequest) -> AsyncIterator[bytes]:
        for data in steps_of(request)[:tokens]:
            yield data

    return script


@pytest.mark.parametrize("said", [0, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_a_resumed_request_is_one_failure_and_one_success(way: str, said: int) -> None:
    """Prefill is told that the first attempt's KV is not needed, unless it was fetched."""
    stages = fleet_of(way)
    stages["decode"].insert(0, Worker(dying(said)))
    async with before(**stages) as stack:
        place_ahead(stack, way)
        first, second = stack.decode
        second.in_flight += 1
        assert await taken(stack, asking()) == {0: TOKENS}
        assert (first.breaker.failures, stack.breaker(first).successes) == (1, 0)
        assert (second.breaker.failures, stack.breaker(second).successes) == (0, 1)
        prefill, told = stages.get("prefill", []), int(not said)
        await eventually(lambda: all(len(worker.aborts) == told for worker in prefill))


async def test_a_decode_that_has_said_all_before_prefill_answers_has_the_kv() -> None:
    stages = fleet_of("ahead")

    async def late(request: GenerateRequest) -> bytes:
        await eventually(lambda: bool(stages["decode"][0].calls))
        await asyncio.sleep(0.05)
        return await handing_over(request)

    async def at_once(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield event(request, ChoiceBody(0, TOKENS, "length"))
        yield DONE

    stages["prefill"][0].whole, stages["decode"][0].script = late, at_once
    async with before(**stages) as stack:
        place_ahead(stack, "ahead")
        assert await taken(stack, asking()) == {0: TOKENS}
        await eventually(lambda: not stack.gateway.client._beside)
        assert not stages["prefill"][0].aborts


async def test_a_choice_that_prefill_has_ended_is_not_waited_for() -> None:
    """Decode, which computes the first token anew, may see it otherwise."""

    async def ending_one(request: GenerateRequest) -> bytes:
        answer = msgspec.json.decode(await handing_over(request))
        answer["choices"][0]["finish_reason"] = "stop"
        return msgspec.json.encode(answer)

    async def going_on(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield event(request, ChoiceBody(0, TOKENS[:1]), ChoiceBody(1, TOKENS, "length"))
        await asyncio.Event().wait()

    stages = fleet_of("ahead")
    stages["prefill"][0].whole, stages["decode"][0].script = ending_one, going_on
    async with before(**stages) as stack:
        place_ahead(stack, "ahead")
        found: dict[int, list[int]] = {}
        async with asyncio.timeout(20):
            async for outputs in stack.gateway.pipeline.run(asking(n=2), {}):
                gather(outputs, found)
        assert found == {0: TOKENS[:1], 1: TOKENS}
        assert stack.breaker(stack.decode[0]).successes == 1


async def test_a_prefill_that_ends_every_choice_holds_nothing() -> None:
    async def ending(request: GenerateRequest) -> bytes:
        choices = b'{"index":0,"token_ids":[11],"finish_reason":"stop"}'
        return b'{"request_id":"%s","choices":[%s]}' % (request.request_id.encode(), choices)

    stages = fleet_of("ahead")
    stages["prefill"][0].whole = ending
    async with before(**stages) as stack:
        place_ahead(stack, "ahead")
        found: dict[int, list[int]] = {}
        async with aclosing(stack.gateway.pipeline.run(asking(), {})) as steps:
            async for outputs in steps:
                gather(outputs, found)
        assert found == {0: [11]}
        assert not stack.gateway.client._beside


async def test_kv_that_decode_was_sent_elsewhere_for_is_given_back() -> None:
    """Prefill has restarted, unseen, since its endpoint was learnt: decode computes by itself."""
    stages = fleet_of("ahead")

    async def restarted(request: GenerateRequest) -> bytes:
        answer = msgspec.json.decode(await handing_over(request))
        answer["kv_transfer_params"]["remote_engine_id"] = "new"
        return msgspec.json.encode(answer)

    stages["prefill"][0].whole = restarted
    async with before(**stages) as stack:
        (prefill,) = stack.fleet.prefill
        prefill.kv_endpoint = {"do_remote_prefill": True, "remote_engine_id": "old"}
        prefill.known = True
        assert await taken(stack, asking()) == {0: TOKENS}
        await eventually(lambda: len(stages["prefill"][0].aborts) == 1)
        assert prefill.suspect and not prefill.known, "it is asked anew where its KV is"
