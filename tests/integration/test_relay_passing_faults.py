"""Routes that are passed on, to workers whose connections or streams end early."""

import pytest

from tests.support.listening import run
from tests.support.relay_failures import streaming
from tests.support.relay_workers import relaying

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
