"""Routes that are passed on, to workers whose connections or streams end early."""

import asyncio

import pytest

from tests.support.listening import run
from tests.support.relay_failures import drop, streaming
from tests.support.relay_workers import Asked, Behaviour, Worker, good, relaying

EMBEDDINGS = "/v1/embeddings"
INPUT = {"model": "m", "input": "x"}


@pytest.mark.parametrize("pieces", [(), (b": nothing\n\n",), (b"data: half",)])
def test_a_stream_without_an_event_is_a_failure_of_the_worker(pieces: tuple[bytes, ...]) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            first, second = relayed.workers["decode"]
            first.script = [streaming(*pieces, end="end")]
            for _ in range(2):
                status, body = await relayed.post(INPUT, path=EMBEDDINGS)
                assert status == 200 and b"whole" in body
            assert (len(first.asked), len(second.asked)) == (1, 2)
            assert relayed.metric("upstream_failures_total") == 1

    run(work)


def test_comments_before_the_first_event_are_passed_on_with_it() -> None:
    pieces = (b": well\n\n", b"event: a\ndata: {}\n\n", b": well\n\n")

    async def work() -> None:
        async with relaying("D") as relayed:
            relayed.workers["decode"][0].script = [streaming(*pieces, end="end")]
            assert await relayed.post(INPUT, path=EMBEDDINGS) == (200, b"".join(pieces))

    run(work)


async def half_a_head(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("end", [drop, half_a_head])
def test_a_kept_connection_that_has_ended_is_no_failure_of_its_worker(end: Behaviour) -> None:
    """As vLLM's end after 5 s without a request, just as the next one comes. aiohttp asks again by
    itself where the method allows it."""

    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [good, end]
            for _ in range(2):
                assert (await relayed.post(INPUT, path=EMBEDDINGS))[0] == 200
            assert (len(decode.asked), decode.connections) == (3, 2)
            assert relayed.metric("upstream_failures_total") == 0
            assert relayed.metric("retries_total") == 0

    run(work)


def test_a_new_connection_that_ends_is_one() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            relayed.workers["decode"][0].script = [drop]
            assert (await relayed.post(INPUT, path=EMBEDDINGS))[0] == 200
            assert relayed.metric("upstream_failures_total") == 1

    run(work)
