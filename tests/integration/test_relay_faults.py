"""The `openai` dialect before workers that fail, and clients that leave."""

import asyncio
import json
from itertools import product

import pytest

from protocol.errors import NotServing
from tests.support.listening import run
from tests.support.relay_failures import (
    ERROR,
    FAILURES,
    GIVEN_UP,
    ROLE,
    STREAM_FAILURES,
    UNASKED,
    hang,
    streaming,
)
from tests.support.relay_workers import (
    CHAT,
    DONE,
    EVENTS,
    HURRIED,
    WHOLE,
    Asked,
    Worker,
    begin,
    chunk,
    data_url,
    pictures,
    relaying,
    text,
    timeouts,
)
from tests.support.thinned import diagonal, thinned
from tests.support.waiting import eventually

ROLES = ("encode", "prefill", "decode")


@pytest.mark.parametrize(("role", "failure"), diagonal(ROLES, [*FAILURES, *UNASKED]))
def test_a_failing_worker_is_not_noticed(role: str, failure: str) -> None:
    async def work() -> None:
        async with relaying("EEPPDD", *(HURRIED if failure == "hang" else ())) as relayed:
            for worker in relayed.workers[role]:
                worker.script = [{**FAILURES, **UNASKED}[failure]]
            for _ in range(3):
                status, answer = await relayed.post(pictures(data_url("A")))
                assert (status, json.loads(answer)) == (200, WHOLE)
            assert all(not worker.script for worker in relayed.workers[role])
            assert relayed.metric("upstream_failures_total") == 2
            assert relayed.metric("retries_total") >= 1
            if failure in UNASKED:
                await eventually(lambda: all(w.left == 1 for w in relayed.workers[role]))

    run(work)


@pytest.mark.parametrize("failure", STREAM_FAILURES)
def test_a_stream_that_does_not_begin_is_begun_elsewhere(failure: str) -> None:
    async def work() -> None:
        async with relaying("PDD", *(HURRIED if failure == "hang" else ())) as relayed:
            for worker in relayed.workers["decode"]:
                worker.script = [STREAM_FAILURES[failure]]
            status, answer = await relayed.post(text(stream=True))
            assert (status, answer) == (200, b"".join(EVENTS) + DONE)
            assert relayed.metric("upstream_failures_total") == 2

    run(work)


CODES = {"drop": "upstream_error", "end": "upstream_error", "hang": "deadline_exceeded"}
HALVES = {"nothing": b"", "half an event": b'data: {"choices":[{"ind'}


@pytest.mark.parametrize(
    ("ending", "more"),
    thinned(product(CODES, HALVES), lambda ending, more: ending != "hang" or bool(HALVES[more])),
)
def test_a_stream_that_breaks_ends_with_one_error(ending: str, more: str) -> None:
    half = HALVES[more]

    async def work() -> None:
        async with relaying("PD", *(HURRIED if ending == "hang" else ())) as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(*EVENTS[:2], *([half] if half else []), end=ending)]
            status, answer = await relayed.post(text(stream=True))
            assert status == 200
            *events, error, done, rest = answer.split(b"\n\n")
            assert [event + b"\n\n" for event in events] == EVENTS[:2]
            assert (done, rest) == (b"data: [DONE]", b"")
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == CODES[ending]
            assert await relayed.post(text()) == (200, json.dumps(WHOLE).encode())

    run(work)


def test_a_role_comes_with_what_follows_it() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(ROLE, EVENTS[0], ROLE, DONE, end="end")]
            assert await relayed.post(text(stream=True)) == (200, ROLE + EVENTS[0] + ROLE + DONE)
            decode.script = [streaming(ROLE + EVENTS[0], DONE, end="end")]
            assert await relayed.post(text(stream=True)) == (200, ROLE + EVENTS[0] + DONE)
            decode.script = [streaming(ROLE, DONE, end="end")]
            assert await relayed.post(text(stream=True)) == (200, ROLE + DONE)

    run(work)


@pytest.mark.parametrize("last", [GIVEN_UP, ERROR])
def test_a_stream_that_is_given_up_counts_as_a_failure(last: bytes) -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(*EVENTS[:2], b"data: %b\n\n" % last, DONE, end="end")]
            status, answer = await relayed.post(text(stream=True))
            *events, error, done, rest = answer.split(b"\n\n")
            assert status == 200 and [event + b"\n\n" for event in events] == EVENTS[:2]
            assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
            assert (done, rest) == (b"data: [DONE]", b"")
            assert relayed.gateway.fleet.decode[0].breaker.failures == 1
            assert relayed.metric("upstream_failures_total") == 1
            assert relayed.metric('request_errors_total{code="upstream_error"}') == 1

    run(work)


@pytest.mark.parametrize("begun", [EVENTS[:2], [ROLE]])
def test_a_later_error_of_the_clients_own_is_not_tried_again(begun: list[bytes]) -> None:
    """Nor charged. Once tokens have gone out it is an event, before that the answer."""

    async def work() -> None:
        async with relaying("DD") as relayed:
            bad = ERROR.replace(b"500", b"400")
            for decode in relayed.workers["decode"]:
                decode.script = [streaming(*begun, b"data: %b\n\n" % bad, DONE, end="end")]
            status, answer = await relayed.post(text(stream=True))
            if begun == [ROLE]:
                assert (status, json.loads(answer)) == (400, json.loads(bad))
            else:
                *events, error, done, rest = answer.split(b"\n\n")
                assert status == 200 and [event + b"\n\n" for event in events] == begun
                assert json.loads(error.removeprefix(b"data: "))["error"]["message"] == "it broke"
                assert (done, rest) == (b"data: [DONE]", b"")
            assert sum(len(decode.asked) for decode in relayed.workers["decode"]) == 1
            assert [one.breaker.failures for one in relayed.gateway.fleet.decode] == [0, 0]
            assert relayed.metric("upstream_failures_total") == 0

    run(work)


def test_an_endless_stream_ends_at_the_deadline() -> None:
    async def endless(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer)
        while True:
            await chunk(writer, EVENTS[0])
            await asyncio.sleep(0.01)

    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [endless]
            status, answer = await relayed.post(text(stream=True), {"x-request-timeout": "2"})
            assert status == 200 and answer.startswith(EVENTS[0] * 3)
            error = answer.split(b"\n\n")[-3].removeprefix(b"data: ")
            assert json.loads(error)["error"]["code"] == "deadline_exceeded"
            await eventually(lambda: decode.left == 1)

    run(work)


def test_an_answer_that_never_ends_is_cut_off() -> None:
    async def endless(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await begin(writer, "application/json")
        while True:
            await chunk(writer, b" " * 65536)

    async def work() -> None:
        async with relaying("DD", "--max-answer-bytes", "1000000") as relayed:
            for decode in relayed.workers["decode"]:
                decode.script = [endless]
            assert (await relayed.post(text()))[0] == 200
            await eventually(lambda: sum(w.left for w in relayed.workers["decode"]) == 2)

    run(work)


@pytest.mark.parametrize(("role", "stream"), diagonal(ROLES, [False, True]))
def test_a_client_that_leaves_ends_the_stage_it_is_in(role: str, stream: bool) -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            (worker,) = relayed.workers[role]
            worker.script = [hang]
            client = asyncio.create_task(relayed.post(pictures(data_url("A"), stream=stream)))
            await eventually(lambda: bool(worker.asked))
            client.cancel()
            await eventually(lambda: worker.left == 1)
            await eventually(lambda: relayed.in_flight == 0)
            if role == "decode":
                await eventually(lambda: relayed.workers["prefill"][0].aborted == ["held"])
            assert relayed.metric("request_aborted_total") == 1

    run(work)


@pytest.mark.parametrize("forgotten", [False, True])
def test_calls_at_a_worker_that_leaves_end_once_it_is_lost(forgotten: bool) -> None:
    """`forgotten`: a worker has come meanwhile, at which pools of workers that are gone end."""

    async def work() -> None:
        async with relaying("D", *timeouts(60.0), "--request-timeout", "60") as relayed:
            fleet, (decode,) = relayed.gateway.fleet, relayed.workers["decode"]
            decode.script = [hang]
            client = asyncio.create_task(relayed.post(text()))
            await eventually(lambda: bool(decode.asked))
            leaving = fleet.decode[0]
            fleet.remove(leaving)
            async with relaying("D") as other:
                (second,) = other.workers["decode"]
                fleet.add(second.url, "decode")
                if forgotten:
                    assert (await relayed.post(text()))[0] == 200
                leaving.lost = True
                fleet.news()
                async with asyncio.timeout(20):
                    assert (await client)[0] == 200
                assert len(second.asked) == 1 + forgotten

    run(work)


def test_a_client_that_leaves_a_stream_ends_it() -> None:
    async def work() -> None:
        async with relaying("PD") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [streaming(EVENTS[0])]
            response = await relayed.session.post(relayed.url + CHAT, json=text(stream=True))
            assert await response.content.readuntil(b"\n\n") == EVENTS[0]
            response.close()
            await eventually(lambda: decode.left == 1)
            assert relayed.workers["prefill"][0].aborted == []  # decode has taken the KV

    run(work)


def test_a_request_that_the_stop_ends_is_counted_once() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            (decode,) = relayed.workers["decode"]
            decode.script = [hang]
            client = asyncio.create_task(relayed.post(text()))
            await eventually(lambda: bool(decode.asked))
            for connection in list(relayed.server.connections):
                connection.end(NotServing("the server is shutting down"))  # type: ignore[union-attr]
            assert (await client)[0] == 503
            assert relayed.metric('request_errors_total{code="not_serving"}') == 1
            assert relayed.metric("request_aborted_total") == 0
            await eventually(lambda: decode.left == 1)

    run(work)


def test_a_client_that_does_not_read_stops_its_worker_from_sending() -> None:
    sent = 0

    async def flood(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await begin(writer)
        event = b'data: {"choices":[],"x":"%b"}\n\n' % (b"x" * 65536)
        for _ in range(1000):
            await chunk(writer, event)
            sent += 1
        await chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")

    async def work() -> None:
        async with relaying("D", "--stall-timeout", "5") as relayed:
            relayed.workers["decode"][0].script = [flood]
            response = await relayed.session.post(relayed.url + CHAT, json=text(stream=True))
            before = -1
            while before != sent:  # until nothing moves
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 1000
            assert (await response.read()).endswith(DONE)
            assert sent == 1000

    run(work)
