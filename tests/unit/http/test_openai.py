"""The OpenAI routes over HTTP: counted from their headers on, bounded, never a 500."""

import asyncio
import contextlib

import pytest

from services.frontend.render import Frontend
from services.http import streams
from tests.conftest import Pass
from tests.support.frontend_helpers import NAME
from tests.support.listening import Client, post, run
from tests.support.openai_server import CHAT, TEXT, Server, asking, chat
from tests.support.waiting import eventually


def test_requests_count_from_their_headers_on(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front)
        async with asking(server) as (ask, address), contextlib.AsyncExitStack() as stack:
            uploads = [await stack.enter_async_context(Client(address)) for _ in range(2)]
            body = post(CHAT, chat())
            for upload in uploads:
                await upload.send(body[:-5])
            await eventually(lambda: server.inside == 2)
            status, answer = await ask(CHAT, chat())
            assert (status, answer["error"]["code"]) == (503, "unavailable")
            await uploads[0].send(body[-5:])
            assert (await uploads[0].answer())[0] == 200
            await eventually(lambda: server.inside == 1)
            await uploads[1].__aexit__()
            await eventually(lambda: server.inside == 0)
            assert (await ask(CHAT, chat()))[0] == 200
            assert server.most == 2
            await eventually(lambda: server.inside == 0)
            # a client that leaves while it sends is no internal error
            assert [error.code for error in server.seen] == ["unavailable", "aborted"]

    run(work)


def test_a_stream_counts_until_its_end(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front, step_s=0.05)
        async with asking(server) as (_, address), Client(address) as client:
            await client.send(post(CHAT, chat(stream=True, max_tokens=4), "connection: close"))
            rest = asyncio.ensure_future(client.rest())
            await eventually(lambda: server.running == 1)
            assert server.inside == 1
            assert b"[DONE]" in await rest
            await eventually(lambda: server.inside == 0)

    run(work)


def test_a_streaming_client_that_does_not_read_is_given_up(
    front: Frontend, passes: Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_GRACE_S", 0.2)

    async def work() -> None:
        server = Server(front, room=5, timeout_s=10, endless=True)
        async with asking(server) as (ask, address), contextlib.AsyncExitStack() as stack:
            for _ in range(5):
                client = await stack.enter_async_context(Client(address, narrow=True))
                await client.send(post(CHAT, chat(stream=True, return_token_ids=True)))
            await eventually(lambda: server.running == 5)
            assert (await ask(CHAT, chat()))[0] == 503
            passes(11)
            await eventually(lambda: server.inside == 0 and server.running == 0)
            server.endless = False
            assert (await ask(CHAT, chat()))[0] == 200

    run(work)


def test_prompts_share_one_deadline(front: Frontend, passes: Pass) -> None:
    async def work() -> None:
        server = Server(front, step_s=0.05)
        async with asking(server) as (ask, _):
            body = {"model": NAME, "prompt": ["Hi"] * 64, "max_tokens": 8}
            asked = asyncio.ensure_future(ask(TEXT, body, X_Request_Timeout="10"))
            await eventually(lambda: len(server.deadlines) == 8)
            passes(4)
            await eventually(lambda: len(server.deadlines) > 8)
            passes(7)
            status, answer = await asked
            assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
            given = [deadline for deadline in server.deadlines if deadline is not None]
            assert len(given) == len(server.deadlines) and min(given) < 7
            await eventually(lambda: server.running == 0 and server.inside == 0)

    run(work)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_deadline_runs_while_the_body_comes(front: Frontend, path: str) -> None:
    async def work() -> None:
        server = Server(front)
        async with asking(server) as (_, address), Client(address) as client:
            await client.send(post(path, chat(prompt="Hi"), "x-request-timeout: 0.2")[:-1])
            status, answer = await client.answer()
            assert status == 504 and b"deadline_exceeded" in answer
            await eventually(lambda: server.inside == 0)
            assert not server.deadlines

    run(work)


def test_several_prompts_come_back_in_order(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front, step_s=0.02)
        async with asking(server) as (ask, _):
            body = {"model": NAME, "prompt": ["Hi"] * 20, "max_tokens": 2}
            status, answer = await ask(TEXT, body)
            assert status == 200
            assert [choice["index"] for choice in answer["choices"]] == list(range(20))
            assert answer["usage"]["completion_tokens"] == 40
            assert 1 < server.most_running <= 8
            assert server.most == 1

    run(work)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body", [b"\xff\xfe{", b'{"prompt": "\xff"}', b"[" * 100_000, b"", b"nonsense", b"[]"]
)
def test_nonsense_is_the_clients_error(front: Frontend, path: str, body: bytes) -> None:
    async def work() -> None:
        server = Server(front)
        async with asking(server) as (ask, _):
            status, answer = await ask(path, body)
            assert status == 400 and answer["error"]["message"]
            assert server.inside == 0

    run(work)
