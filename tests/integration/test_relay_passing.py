"""Routes of a vLLM fleet beside chat and completions: passed on, tried again, refused."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from proxy.relay.passed_routes import OPERATED, PASSED, PassedRoute
from tests.support.listening import run
from tests.support.relay_failures import drop, hang, saying, streaming
from tests.support.relay_workers import HURRIED, Relayed, Worker, relaying
from tests.support.waiting import eventually

EMBEDDINGS = "/v1/embeddings"
LOAD = "/v1/load_lora_adapter"
VECTOR = b'{"object":"list","data":[{"embedding":[0.5,0.25]}]}'
NOT_FOUND = saying(b'{"error":{"message":"Not Found","type":"Not Found","code":404}}', status=404)
EVENTS = [b"event: response.created\ndata: {}\n\n", b"event: response.completed\ndata: {}\n\n"]
ADMIN = ("--admin-api-key", "root")


async def ask(relayed: Relayed, route: PassedRoute, **more: Any) -> tuple[int, str, bytes]:
    """Status, content type and body of a plain request for a route."""
    given: dict[str, Any] = {"json": {"model": "m", "input": "x"}}
    if route.form:
        form = aiohttp.FormData()
        form.add_field("file", b"\x00RIFF", filename="a.wav")
        given = {"data": form}
    if route.method == "GET":
        given = {}
    call = relayed.session.request(route.method, relayed.url + route.path, **given | more)
    async with call as response:
        return response.status, response.content_type, await response.read()


def decoders(relayed: Relayed) -> list[Worker]:
    return relayed.workers["decode"]


def test_each_route_is_answered_by_a_decode_worker() -> None:
    async def work() -> None:
        async with relaying("EPD") as relayed:
            (decode,) = decoders(relayed)
            for route in PASSED:
                decode.script = [saying(VECTOR, "application/json")]
                found = await ask(relayed, route)
                assert found == (200, "application/json", VECTOR), route
                (asked,) = decode.asked
                decode.asked.clear()
                assert asked.path == (route.asked_as or route.path)
                if route.form:
                    assert b"\x00RIFF" in asked.body, route
                elif route.method == "POST":
                    assert asked.body == {"model": "m", "input": "x"}, route
                assert not relayed.workers["prefill"][0].asked, route
                assert relayed.in_flight == 0, route

    run(work)


def test_a_priority_goes_on_as_far_as_min_priority_allows() -> None:
    async def work() -> None:
        async with relaying("D", "--min-priority", "-5") as relayed:
            (decode,) = decoders(relayed)
            for priority, wanted in ((-5, 200), (-6, 400)):
                body = {"model": "m", "input": "x", "messages": [], "priority": priority}
                status, _, _ = await ask(relayed, PASSED[0], json=body)
                assert status == wanted
                assert (await relayed.post(body))[0] == wanted
            assert [asked.body["priority"] for asked in decode.asked] == [-5, -5]

    run(work)


def test_what_the_worker_is_told_of_the_client() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            headers = {"authorization": "Bearer key", "x-request-id": "me", "cookie": "private"}
            body = {"model": "m", "kv_transfer_params": {"remote_host": "10.0.0.1"}}
            status, _, _ = await ask(relayed, PASSED[0], json=body, headers=headers)
            assert status == 200
            (asked,) = decoders(relayed)[0].asked
            assert asked.headers["authorization"] == "bearer key"
            assert asked.headers["x-request-id"] == "me"
            assert "cookie" not in asked.headers
            assert asked.body == {"model": "m"}, "a client says where a worker fetches KV"

    run(work)


def test_a_body_may_name_the_request() -> None:
    """As a header does, which goes before it."""

    async def work() -> None:
        async with relaying("D") as relayed:
            body, headers = {"model": "m", "request_id": "mine"}, {"x-request-id": "me"}
            for more in ({}, {}, {"headers": headers}):
                assert (await ask(relayed, PASSED[0], json=body, **more))[0] == 200
            first, second, third = decoders(relayed)[0].asked
            names = [asked.headers["x-request-id"] for asked in (first, second, third)]
            assert names[0] != names[1] and all(name.startswith("mine-") for name in names[:2])
            assert names[2] == "me" and third.body == body

    run(work)


@pytest.mark.parametrize(
    "failure", [drop, hang, saying(b'{"error":{"message":"it broke"}}', status=500)]
)
def test_another_worker_answers_where_one_fails(failure: Any) -> None:
    async def work() -> None:
        async with relaying("DD", *(HURRIED if failure is hang else ())) as relayed:
            for worker in decoders(relayed):
                worker.script = [failure] if worker is decoders(relayed)[0] else []
            for _ in range(2):
                status, _, _ = await ask(relayed, PASSED[0])
                assert status == 200
            assert relayed.metric("upstream_failures_total") == 1
            assert relayed.metric("retries_total") >= 1

    run(work)


def test_a_failure_everywhere_is_told_without_names_of_workers() -> None:
    async def work() -> None:
        async with relaying("DD", "--max-retries", "1") as relayed:
            for worker in decoders(relayed):
                worker.script = [saying(b'{"error":{"message":"it broke"}}', status=500)] * 4
            status, _, body = await ask(relayed, PASSED[0])
            assert status == 502
            error = json.loads(body)["error"]
            assert error["code"] == "upstream_error" and "127.0.0.1" not in error["message"]

    run(work)


def test_a_clients_own_fault_is_told_in_the_workers_words() -> None:
    said = b'{"error":{"message":"The model `m` does not exist.","code":404}}'

    async def work() -> None:
        async with relaying("DD") as relayed:
            for status in (400, 404, 422, 501):
                for worker in decoders(relayed):
                    worker.asked.clear()
                    worker.script = [saying(said, status=status)]
                assert await ask(relayed, PASSED[0]) == (status, "application/json", said)
                assert sum(len(worker.asked) for worker in decoders(relayed)) == 1, status
                assert relayed.metric("upstream_failures_total") == 0, status

    run(work)


def test_a_route_that_some_workers_lack() -> None:
    """No failure of theirs: they are passed over from then on, and not for other routes."""

    async def work() -> None:
        async with relaying("DD") as relayed:
            lacking, having = decoders(relayed)
            lacking.script = [NOT_FOUND]
            for _ in range(4):
                assert (await ask(relayed, PASSED[0]))[0] == 200
            assert len(lacking.asked) == 1 and len(having.asked) == 4
            assert relayed.metric("upstream_failures_total") == 0
            for _ in range(2):
                assert (await ask(relayed, PASSED[3]))[0] == 200
            assert len(lacking.asked) == 2

    run(work)


@pytest.mark.parametrize(
    "answer",
    [
        NOT_FOUND,
        saying(b'{"detail":"Not Found"}', status=404),
        saying(b'{"error":{"message":"POST /v1/embeddings: Not Found"}}', status=404),
        saying(b'{"detail":"Method Not Allowed"}', status=405),
    ],
)
def test_a_route_that_all_workers_lack(answer: Any) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            for worker in decoders(relayed):
                worker.script = [answer] * 9
            for _ in range(3):
                status, _, body = await ask(relayed, PASSED[0])
                assert status == 404
                assert (
                    json.loads(body)["error"]["message"] == f"no worker here has POST {EMBEDDINGS}"
                )
            assert [len(worker.asked) for worker in decoders(relayed)] == [1, 1]
            assert relayed.metric("upstream_failures_total") == 0

    run(work)


def test_a_route_that_the_proxy_does_not_know() -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            status, _ = await relayed.post({}, path="/v1/images/generations")
            assert status == 404 and not decoders(relayed)[0].asked

    run(work)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_streams_without_an_end_mark_come_through(path: str) -> None:
    async def work() -> None:
        async with relaying("DD") as relayed:
            route = next(route for route in PASSED if route.path == path)
            decoders(relayed)[0].script = [drop]
            for worker in decoders(relayed):
                worker.script.append(streaming(*EVENTS, end="end"))
            body = {"model": "m", "stream": True}
            found = await ask(relayed, route, json=body)
            assert found == (200, "text/event-stream", b"".join(EVENTS))
            assert relayed.in_flight == 0

    run(work)


@pytest.mark.parametrize("end", ["drop", "hang"])
@pytest.mark.parametrize(
    ("path", "error"),
    [("/v1/responses", b'data: {"error":'), ("/v1/messages", b'event: error\ndata: {"type":"err')],
)
def test_a_stream_that_breaks_says_so(path: str, error: bytes, end: str) -> None:
    async def work() -> None:
        async with relaying("D", *(HURRIED if end == "hang" else ())) as relayed:
            route = next(route for route in PASSED if route.path == path)
            decoders(relayed)[0].script = [streaming(EVENTS[0], b"event: half", end=end)]
            status, _, body = await ask(relayed, route, json={"model": "m", "stream": True})
            assert status == 200
            assert body.startswith(EVENTS[0] + error) and b"127.0.0.1" not in body
            assert relayed.metric("upstream_failures_total") == 1
            assert relayed.in_flight == 0

    run(work)


def test_a_client_that_leaves_ends_the_call() -> None:
    async def work() -> None:
        async with relaying("D", "--stall-timeout", "20") as relayed:
            (decode,) = decoders(relayed)
            decode.script = [streaming(EVENTS[0])]
            route = next(route for route in PASSED if route.path == "/v1/responses")
            call = relayed.session.post(relayed.url + route.path, json={"stream": True})
            async with call as response:
                await response.content.readany()
                response.close()
            await eventually(lambda: decode.left == 1 and relayed.in_flight == 0)

    run(work)


def test_bodies_are_bounded_and_checked() -> None:
    async def work() -> None:
        async with relaying("D", "--max-body-bytes", "2000") as relayed:
            post = relayed.post
            assert (await post({"input": "x" * 3000}, path=EMBEDDINGS))[0] == 413
            assert (await post(b"[1]", path=EMBEDDINGS))[0] == 400
            assert (await post(b"{", path=EMBEDDINGS))[0] == 400
            assert (await post({}, path="/v1/audio/transcriptions"))[0] == 415
            assert not decoders(relayed)[0].asked

    run(work)


def test_they_count_as_requests() -> None:
    async def work() -> None:
        async with relaying("D", "--max-in-flight", "1", "--decode-timeout", "9") as relayed:
            decoders(relayed)[0].script = [hang]
            first = asyncio.create_task(ask(relayed, PASSED[0]))
            await eventually(lambda: bool(decoders(relayed)[0].asked))
            status, _, _ = await ask(relayed, PASSED[0])
            assert status == 503
            first.cancel()
            await eventually(lambda: relayed.in_flight == 0)
            assert (await ask(relayed, PASSED[0]))[0] == 200

    run(work)


def test_they_wait_for_room_at_the_workers() -> None:
    async def work() -> None:
        async with relaying("D", "--max-per-worker", "1", "--max-queue", "0") as relayed:
            decoders(relayed)[0].script = [hang]
            first = asyncio.create_task(ask(relayed, PASSED[0]))
            await eventually(lambda: bool(decoders(relayed)[0].asked))
            assert (await ask(relayed, PASSED[0]))[0] == 503
            tokenize = next(route for route in PASSED if route.path == "/tokenize")
            assert (await ask(relayed, tokenize))[0] == 200, "it takes no room"
            first.cancel()

    run(work)


def test_operators_reach_every_worker() -> None:
    async def work() -> None:
        async with relaying("EPDD", *ADMIN) as relayed:
            headers = {"x-api-key": "root"}
            body = {"lora_name": "a", "lora_path": "/a"}
            workers = {worker.url: {"status": 200, "answer": "done"} for worker in relayed.all()}
            for route in OPERATED:
                for worker in relayed.all():
                    worker.asked.clear()
                    worker.script = [saying(b"done", "text/plain")]
                status, answer = await relayed.post(body, headers, route.path)
                assert (status, json.loads(answer)) == (200, {"workers": workers}), route
                for worker in relayed.all():
                    assert [asked.body for asked in worker.asked] == [body], route

    run(work)


def test_operators_hear_which_worker_failed() -> None:
    async def work() -> None:
        async with relaying("DD", *ADMIN) as relayed:
            well, broken = decoders(relayed)
            broken.script = [saying(b'{"error":"no such file"}', status=400)]
            headers = {"x-api-key": "root"}
            status, answer = await relayed.post({}, headers, LOAD)
            told = json.loads(answer)["workers"]
            assert status == 400
            assert told[well.url]["status"] == 200
            assert told[broken.url] == {"status": 400, "answer": {"error": "no such file"}}
            status, answer = await relayed.post({}, headers, f"{LOAD}?worker={well.url}")
            assert status == 200 and list(json.loads(answer)["workers"]) == [well.url]
            assert (await relayed.post({}, headers, f"{LOAD}?worker=http://x"))[0] == 400

    run(work)


@pytest.mark.parametrize("flags", [(), ADMIN])
def test_other_callers_reach_no_worker(flags: tuple[str, ...]) -> None:
    async def work() -> None:
        async with relaying("D", *flags) as relayed:
            for route in OPERATED:
                for headers in ({}, {"x-api-key": "other"}, {"authorization": "Bearer root"}):
                    assert (await relayed.post({}, headers, route.path))[0] == 401, route
            assert not decoders(relayed)[0].asked

    run(work)
