"""How a request ends for its client, and what the proxy counts of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protocol.errors import DeadlineExceeded
from protocol.types import GenerateRequest
from services.frontend.answers.answering import Answering
from services.frontend.spec import OutputSpec, RenderedRequest
from services.frontend.tokenizer import Tokenizer
from tests.support.frontend_helpers import frontend, write_model
from tests.support.scripted_workers import (
    TOKENS,
    WAYS,
    Stack,
    Worker,
    asking,
    before,
    fleet_of,
    place_ahead,
    steps_of,
)
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("model") / "tiny"
    return frontend(write_model("qwen2_5_vl", path)).tokenizer


def rendered(request: GenerateRequest, **spec: object) -> RenderedRequest:
    output = OutputSpec(request.request_id, "m", True, request.token_ids, **spec)  # type: ignore[arg-type]
    return RenderedRequest(request, {}, output)


def metric(stack: Stack, name: str) -> float:
    lines = stack.gateway.metrics.render().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"triptych_{name}"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", WAYS)
async def test_a_whole_request_is_timed(way: str, stream: bool, tokenizer: Tokenizer) -> None:
    async with before(**fleet_of(way)) as stack:
        place_ahead(stack, way)
        wanted = rendered(asking(), stream=stream)
        await answered(stack, wanted, tokenizer)
        assert metric(stack, "proxy:e2e_request_latency_seconds_count") == 1
        assert metric(stack, "proxy:request_aborted_total") == 0
        assert metric(stack, "proxy:requests_in_flight") == 0


async def answered(stack: Stack, wanted: RenderedRequest, tokenizer: Tokenizer) -> bytes:
    answering, steps = Answering(wanted.output, tokenizer), stack.gateway.run(wanted)
    if not wanted.output.stream:
        await answering.whole(steps)
        return b""
    first = await anext(steps)
    return b"".join([event async for event in answering.events(first, steps)])


async def test_a_stop_string_ends_a_call_that_goes_on_as_a_success(tokenizer: Tokenizer) -> None:
    """The worker does not know of it: its stream is cut."""
    text = tokenizer.decode(TOKENS[:2])
    cut = asyncio.Event()

    async def on_and_on(request: GenerateRequest) -> AsyncIterator[bytes]:
        for data in steps_of(request)[:3]:
            yield data
        await cut.wait()

    worker = Worker(on_and_on)
    async with before(decode=[worker]) as stack:
        (instance,) = stack.decode
        instance.breaker.failures = 3
        await answered(stack, rendered(asking(), stop=(text,), stream=True), tokenizer)
        assert (instance.breaker.failures, stack.breaker(instance).successes) == (0, 1)
        assert metric(stack, "proxy:e2e_request_latency_seconds_count") == 1
        await eventually(lambda: worker.left == 1)


async def test_a_client_that_leaves_a_stream_is_counted(tokenizer: Tokenizer) -> None:
    async def hanging(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield steps_of(request)[0]
        await asyncio.Event().wait()

    worker = Worker(hanging)
    async with before(decode=[worker]) as stack:
        wanted = rendered(asking(), stream=True)
        reader = asyncio.create_task(answered(stack, wanted, tokenizer))
        await eventually(lambda: bool(worker.calls) and stack.decode[0].in_flight == 1)
        await eventually(lambda: metric(stack, "proxy:time_to_first_token_seconds_count") == 1)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert metric(stack, "proxy:request_aborted_total") == 1
        assert metric(stack, "proxy:e2e_request_latency_seconds_count") == 0
        await eventually(lambda: worker.left == 1)
        breaker = stack.breaker(stack.decode[0])
        assert (breaker.failures, breaker.successes) == (0, 0)


async def test_an_error_after_a_streams_first_token_is_counted(tokenizer: Tokenizer) -> None:
    async def failing(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield steps_of(request)[0]

    async with before(decode=[Worker(failing)], flags=("--max-retries", "0")) as stack:
        answer = await answered(stack, rendered(asking(), stream=True), tokenizer)
        assert b'"error"' in answer
        assert metric(stack, 'proxy:request_errors_total{code="upstream_error"}') == 1


async def test_a_client_that_leaves_at_the_first_chunk_ends_the_steps(
    tokenizer: Tokenizer,
) -> None:
    worker = Worker()
    async with before(decode=[worker]) as stack:
        wanted = rendered(asking(), stream=True)
        steps = stack.gateway.run(wanted)
        events = Answering(wanted.output, tokenizer).events(await anext(steps), steps)
        await anext(events)
        assert stack.decode[0].in_flight == 1
        await events.aclose()
        assert stack.decode[0].in_flight == 0


@pytest.mark.parametrize("way", WAYS)
async def test_a_deadline_of_zero_has_passed(way: str) -> None:
    workers = fleet_of(way)
    async with before(**workers) as stack:
        place_ahead(stack, way)
        with pytest.raises(DeadlineExceeded):
            await anext(stack.gateway.pipeline.run(asking(deadline_s=0.0), {}))
        assert not any(worker.calls for role in workers.values() for worker in role)
        assert stack.gateway.in_flight.count == 0
