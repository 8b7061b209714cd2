"""What workers say when they refuse, on its way to a client: without names, and no key of ours."""

import json
import logging
from typing import Any

import pytest
from aiohttp import web

from protocol.errors import TriptychError
from tests.support.listening import run
from tests.support.relay_failures import saying, streaming
from tests.support.relay_workers import CHAT, Behaviour, data_url, pictures, relaying, text
from tests.support.scripted_workers import Worker, asking, before

PATHS = [CHAT, "/v1/embeddings"]
SECRET = "http://10.0.0.1:99/ secret at decode-7:8001, instance 0123456789abcdef"
TOLD = "an address secret at an address, an instance"
KEYS = ("--api-key", "ours", "--worker-api-key", "theirs")
OURS = {"authorization": "Bearer ours"}


def refusing(status: int, body: Any, extra: str = "") -> Behaviour:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return saying(data, status=status, extra=extra)


REFUSALS: list[tuple[Any, Any]] = [  # what a worker says, and what a client is told
    ({"error": {"message": SECRET, "code": 400, "more": [SECRET, 5, None]}},
     {"error": {"message": TOLD, "code": 400, "more": [TOLD, 5, None]}}),
    ({"detail": [{"msg": SECRET}]}, {"detail": [{"msg": TOLD}]}),
    (SECRET.encode(), TOLD.encode()),
    (b'{ "error" : "a b" }', b'{ "error" : "a b" }'),
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_refusal_names_no_process(path: str) -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            for said, told in REFUSALS:
                relayed.workers["decode"][0].script = [refusing(400, said)]
                status, body = await relayed.post(text(), path=path)
                assert status == 400
                assert (body if isinstance(told, bytes) else json.loads(body)) == told

    run(work)


def test_nor_does_one_in_a_stream_that_has_begun() -> None:
    error = json.dumps({"error": {"message": SECRET, "code": 400}}).encode()
    begun = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'

    async def work() -> None:
        async with relaying("D") as relayed:
            relayed.workers["decode"][0].script = [streaming(begun, b"data: " + error + b"\n\n")]
            _, body = await relayed.post(text(stream=True))
            assert TOLD.encode() in body and b"10.0.0.1" not in body

    run(work)


@pytest.mark.parametrize("path", PATHS)
def test_a_refusal_that_is_very_long_is_told_shortly(path: str) -> None:
    said = {"error": {"message": SECRET + " " + "x" * 200_000, "code": 400}}

    async def work() -> None:
        async with relaying("D") as relayed:
            relayed.workers["decode"][0].script = [refusing(400, said, "retry-after: 9e9\r\n")]
            status, body = await relayed.post(text(), path=path)
            assert status == 400 and len(body) < 20_000
            assert json.loads(body)["error"]["message"].startswith(TOLD)

    run(work)


@pytest.mark.parametrize("path", PATHS)
def test_a_wait_in_a_refusal_is_bounded(path: str) -> None:
    async def work() -> None:
        async with relaying("D") as relayed:
            extra = "retry-after: %s\r\n" % ("9" * 400)
            relayed.workers["decode"][0].script = [refusing(400, {"error": "no"}, extra)]
            async with relayed.session.post(relayed.url + path, json=text()) as response:
                assert response.status == 400 and response.headers["retry-after"] == "3600"

    run(work)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("status", [401, 403])
def test_our_key_that_a_worker_refuses_is_no_clients_fault(
    path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Another worker may take it, and one that does not is charged once."""
    no = refusing(status, {"error": {"message": "no such key", "code": status}})

    async def work() -> None:
        async with relaying("DD", *KEYS) as relayed:
            first, second = relayed.workers["decode"]
            first.script = second.script = [no]
            assert (await relayed.post(text(), OURS, path))[0] == 200
            first.script = second.script = [no] * 9
            answered, body = await relayed.post(text(), OURS, path)
            assert answered == 502 and b"--worker-api-key" in body and b"127.0.0.1" not in body
            assert first.url in caplog.text or second.url in caplog.text

    with caplog.at_level(logging.WARNING):
        run(work)


@pytest.mark.parametrize("path", PATHS)
def test_nor_is_an_encoder_that_refuses_it(path: str) -> None:
    no = refusing(401, {"error": {"message": "no such key", "code": 401}})

    async def work() -> None:
        async with relaying("ED", *KEYS) as relayed:
            relayed.workers["encode"][0].script = [no] * 99
            assert (await relayed.post(pictures(data_url("a")), OURS, path))[0] == 502

    run(work)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", [{"authorization": "Bearer wrong"}, {}])
def test_a_clients_own_key_is_judged_by_the_worker(path: str, headers: dict[str, str]) -> None:
    """Where the proxy asks for none and has none: and no such client shuts others out."""
    said = {"error": {"message": "Unauthorized", "code": 401}}

    async def work() -> None:
        async with relaying("D", "--breaker-failures", "2") as relayed:
            relayed.workers["decode"][0].script = [refusing(401, said)] * 4
            for _ in range(4):
                status, body = await relayed.post(text(), headers, path)
                assert (status, json.loads(body)) == (401, said)
            assert (await relayed.post(text(), headers, path))[0] == 200

    run(work)


async def test_rendered_requests_hear_of_no_key_either() -> None:
    async def forbidden(_: Any) -> Any:
        raise web.HTTPUnauthorized(text='{"error":{"message":"no such key"}}')
        yield b""

    async with before(decode=[Worker(forbidden)]) as stack:
        with pytest.raises(TriptychError) as caught:
            async for _ in stack.gateway.pipeline.run(asking(), {}):
                pass
        assert caught.value.status == 502 and stack.decode[0].breaker.failures == 1
        assert "--worker-api-key" in caught.value.to_openai()["error"]["message"]


async def test_nor_of_names() -> None:
    async def bad(_: Any) -> Any:
        raise web.HTTPBadRequest(text=json.dumps({"error": {"message": SECRET}}))
        yield b""

    async with before(decode=[Worker(bad)]) as stack:
        with pytest.raises(TriptychError) as caught:
            async for _ in stack.gateway.pipeline.run(asking(), {}):
                pass
        assert caught.value.status == 400
        assert caught.value.to_openai()["error"]["message"] == TOLD
