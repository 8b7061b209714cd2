"""The Responses API over HTTP: kept, gone on from, forgotten, each client's own."""

import json
from typing import Any

import aiohttp
import pytest
from msgspec import convert, to_builtins

from protocol.responses_answers import ResponseAnswer
from services.frontend.render import Frontend
from tests.conftest import Pass
from tests.support.listening import run
from tests.support.openai_server import Server, asking

PATH = "/v1/responses"
TOLD = {"input": "Hi", "max_output_tokens": 2}


def test_a_response_goes_on_from_one_that_was_stored(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, first = await ask(PATH, {**TOLD, "instructions": "Be brief."})
            assert status == 200 and first["status"] == "incomplete"
            assert await ask(f"{PATH}/{first['id']}", method="GET") == (200, first)
            assert to_builtins(convert(first, ResponseAnswer)) == first
            status, second = await ask(PATH, {**TOLD, "previous_response_id": first["id"]})
            spelled = [
                {"role": "user", "content": "Hi"},
                *first["output"],
                {"role": "user", "content": "Hi"},
            ]
            _, whole = await ask(PATH, {**TOLD, "input": spelled, "store": False})
            assert second["usage"] == whole["usage"]
            assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
            listed = await ask(f"{PATH}/{second['id']}/input_items", method="GET")
            assert [item["content"] for item in listed[1]["data"]] == ["Hi"]
            assert (await ask(f"{PATH}/{whole['id']}", method="GET"))[0] == 404
            assert (await ask(f"{PATH}/{first['id']}", method="DELETE"))[1]["deleted"]
            for path, method in ((f"{PATH}/{first['id']}", "GET"), (f"{PATH}/x", "DELETE")):
                status, answer = await ask(path, method=method)
                assert (status, answer["error"]["code"]) == (404, "response_not_found")

    run(work)


def test_a_response_is_there_for_its_client_alone(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            _, mine = await ask(PATH, TOLD, authorization="Bearer a")
            path = f"{PATH}/{mine['id']}"
            assert (await ask(path, method="GET", authorization="Bearer b"))[0] == 404
            status, _ = await ask(
                PATH, {**TOLD, "previous_response_id": mine["id"]}, authorization="Bearer b"
            )
            assert status == 404
            assert (await ask(path, method="GET", authorization="Bearer a"))[0] == 200

    run(work)


@pytest.mark.parametrize("store", [None, True, False])
def test_where_nothing_is_stored_the_answer_says_so(store: bool | None, front: Frontend) -> None:
    async def work() -> None:
        server = Server(front, response_store_bytes=0)
        async with asking(server) as (ask, address), aiohttp.ClientSession() as session:
            status, whole = await ask(PATH, {**TOLD, "store": store})
            assert (status, whole["store"]) == (200, False)
            url = f"http://{address[0]}:{address[1]}{PATH}"
            async with session.post(url, json={**TOLD, "store": store, "stream": True}) as answer:
                assert b'"store":true' not in await answer.read()
            for path, body in ((PATH, {**TOLD, "previous_response_id": whole["id"]}),
                               (f"{PATH}/{whole['id']}", None)):  # fmt: skip
                status, answer = await ask(path, body, method="POST" if body else "GET")
                assert (status, answer["error"]["code"]) == (404, "response_not_found")
                assert "stores none" in answer["error"]["message"]

    run(work)


def test_errors_name_the_field_of_the_response(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            wrong: list[tuple[dict[str, Any], str]] = [
                ({"input": []}, "input"),
                ({"max_output_tokens": 10**6}, "max_output_tokens"),
                ({"text": {"format": {"type": "cow"}}}, "text.format"),
                ({"background": True}, "background"),
            ]
            for fields, param in wrong:
                status, answer = await ask(PATH, {**TOLD, **fields})
                assert (status, answer["error"]["param"]) == (400, param)

    run(work)


def test_a_stream_is_stored_before_it_ends(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, address), aiohttp.ClientSession() as session:
            url = f"http://{address[0]}:{address[1]}{PATH}"
            async with session.post(url, json={**TOLD, "stream": True}) as answer:
                text = (await answer.read()).decode()
            last = json.loads(text.strip().rpartition("data: ")[2])
            assert last["type"] == "response.incomplete"
            stored = await ask(f"{PATH}/{last['response']['id']}", method="GET")
            assert stored == (200, last["response"])

    run(work)


def test_a_stream_that_is_too_slow_ends_as_failed(front: Frontend, passes: Pass) -> None:
    async def work() -> None:
        server = Server(front, endless=True, step_s=0.01, timeout_s=10)
        async with asking(server) as (_, address), aiohttp.ClientSession() as session:
            url = f"http://{address[0]}:{address[1]}{PATH}"
            async with session.post(url, json={"input": "Hi", "stream": True}) as answer:
                begun = await answer.content.readline()
                passes(12)
                text = (begun + await answer.content.read()).decode()
            (failed,) = [line for line in text.splitlines() if '"response.failed"' in line]
            assert json.loads(failed.removeprefix("data: "))["response"]["status"] == "failed"

    run(work)
