"""Answers with status 200 by which a worker gives up a request that is passed on."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.listening import run
from tests.support.relay_failures import drop, saying, streaming
from tests.support.relay_workers import Asked, Behaviour, Relayed, Worker, begin, chunk, relaying

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BATCH = "/v1/chat/completions/batch"


def event(**said: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (said["type"].encode(), json.dumps(said).encode())


def response(status: str, error: Any = None) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "error": error}


def message(**more: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "content": [], **more}


BROKEN = {"code": "server_error", "message": "it broke"}
CREATED = event(type="response.created", response=response("in_progress"))
TEXT = event(type="response.output_text.delta", delta='an "error"')
COMPLETED = event(type="response.completed", response=response("completed"))
START = event(type="message_start", message=message(stop_reason=None))
SAID = event(type="content_block_delta", delta={"type": "text_delta", "text": 'an "abort"'})
STOP = event(type="message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None})
GOOD = {RESPONSES: [CREATED, TEXT, COMPLETED], MESSAGES: [START, SAID, STOP]}
ENDS = {
    "a response that failed": (
        RESPONSES, event(type="response.failed", response=response("failed", BROKEN))),
    "a response that was cancelled": (
        RESPONSES, event(type="response.completed", response=response("cancelled"))),
    "an error of a response": (RESPONSES, event(type="error", **BROKEN)),
    "an error as of a chat": (RESPONSES, b'data: {"error":{"message":"it broke","code":500}}\n\n'),
    "an error of a message": (
        MESSAGES, event(type="error", error={"type": "internal_error", "message": "it broke"})),
    "a message without a stop reason": (
        MESSAGES, event(type="message_delta", delta={"stop_reason": None})),
}  # fmt: skip
WHOLE = {
    RESPONSES: response("completed"),
    MESSAGES: message(stop_reason="end_turn"),
    BATCH: {"choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}]},
    "/classify": {"data": [{"label": "error"}, {"label": "abort"}]},
}
GIVEN_UP = [
    (RESPONSES, response("failed", BROKEN)),
    (RESPONSES, response("cancelled")),
    (MESSAGES, message()),
    (MESSAGES, message(stop_reason=None)),
    (BATCH, {"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}),
    ("/v1/embeddings", {"error": {"message": "it broke"}, "data": []}),
]


def telling(said: Any) -> Behaviour:
    return saying(json.dumps(said).encode())


def failures(relayed: Relayed) -> list[int]:
    return [one.breaker.failures for one in relayed.gateway.fleet.decode]


@pytest.mark.parametrize(("path", "said"), GIVEN_UP)
def test_another_worker_answers_where_one_gives_up(path: str, said: Any) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            good = WHOLE.get(path, {"data": []})
            for worker in relayed.workers["decode"]:
                worker.script = [telling(said), telling(good), telling(good)]
            for _ in range(2):
                status, body = await relayed.post({"model": "m"}, path=path)
                assert (status, json.loads(body)) == (200, good)
            assert relayed.metric("upstream_failures_total") == 2
            assert relayed.metric("retries_total") >= 1

    run(work)


@pytest.mark.parametrize("path", WHOLE)
def test_a_whole_answer_that_is_good_is_no_failure(path: str) -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            relayed.workers["decode"][0].script = [telling(WHOLE[path])]
            status, body = await relayed.post({"model": "m"}, path=path)
            assert (status, json.loads(body)) == (200, WHOLE[path])
            assert relayed.metric("upstream_failures_total") == 0

    run(work)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("together", [False, True])
def test_a_stream_that_is_good_comes_through(path: str, together: bool) -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            whole = b"".join(GOOD[path])
            pieces = [whole] if together else GOOD[path]
            relayed.workers["decode"][0].script = [streaming(*pieces, end="end")]
            found = await relayed.post({"model": "m", "stream": True}, path=path)
            assert found == (200, whole)
            assert relayed.metric("upstream_failures_total") == 0

    run(work)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_stream_that_gives_up_before_its_answer_is_begun_elsewhere(end: str, begun: bool) -> None:
    """`begun`: after an event that says nothing of the answer."""
    path, last = ENDS[end]

    async def work() -> None:
        async with relaying("DD") as relayed:
            first = GOOD[path][:1] if begun else []
            for worker in relayed.workers["decode"]:
                worker.script = [streaming(*first, last, end="end")]
                worker.script += [streaming(*GOOD[path], end="end")] * 2
            for _ in range(2):
                found = await relayed.post({"model": "m", "stream": True}, path=path)
                assert found == (200, b"".join(GOOD[path]))
            assert relayed.metric("upstream_failures_total") == 2

    run(work)


@pytest.mark.parametrize("path", GOOD)
def test_a_stream_that_breaks_before_its_answer_is_begun_elsewhere(path: str) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [streaming(GOOD[path][0], end="drop"), drop]
                worker.script += [streaming(*GOOD[path], end="end")] * 2
            found = await relayed.post({"model": "m", "stream": True}, path=path)
            assert found == (200, b"".join(GOOD[path]))

    run(work)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_stream_that_gives_up_later_ends_with_one_error(end: str, together: bool) -> None:
    """`together`: the last event comes with one that is good."""
    path, last = ENDS[end]
    first, text, _ = GOOD[path]
    before = first + text * 2 if together else first + text

    async def work() -> None:
        read = asyncio.Event()

        async def gives_up(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
            await begin(writer)
            await chunk(writer, first + text)
            await read.wait()
            await chunk(writer, text + last if together else last)
            writer.write(b"0\r\n\r\n")

        async with relaying("DD") as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [gives_up]
            call = relayed.session.post(relayed.url + path, json={"model": "m", "stream": True})
            async with call as answer:
                body = await answer.content.readexactly(len(first + text))
                read.set()
                body += await answer.read()
            assert body.startswith(before)
            (error,) = body.removeprefix(before).strip().split(b"\n\n")
            assert b'"error":' in error and b"127.0.0.1" not in error
            assert sorted(failures(relayed)) == [0, 1]
            assert relayed.metric("upstream_failures_total") == 1
            assert relayed.metric('request_errors_total{code="upstream_error"}') == 1

    run(work)


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (RESPONSES, event(type="error", code="invalid_prompt", message="too long")),
        (RESPONSES, b'data: {"error":{"message":"too long","code":400}}\n\n'),
        (MESSAGES, event(type="error", error={"type": "invalid_request_error", "message": "no"})),
    ],
)
def test_an_error_of_the_clients_own_is_not_tried_again(path: str, last: bytes) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [streaming(GOOD[path][0], last, end="end")]
            status, _ = await relayed.post({"model": "m", "stream": True}, path=path)
            assert status == 400 and failures(relayed) == [0, 0]
            assert sum(len(worker.asked) for worker in relayed.workers["decode"]) == 1

    run(work)


def test_a_stored_response_that_failed_is_told() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            said = response("failed", BROKEN)
            relayed.workers["decode"][0].script = [telling(said)]
            async with relayed.session.get(f"{relayed.url}{RESPONSES}/resp_1") as found:
                assert (found.status, await found.json()) == (200, said)
            assert relayed.metric("upstream_failures_total") == 0

    run(work)
