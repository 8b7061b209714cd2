"""The OpenAI routes over HTTP: counted from their headers on, bounded, never a 500."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from fastapi import FastAPI

from protocol.errors import TriptychError, Unavailable
from protocol.types import RequestOutput
from services.frontend.render import Frontend, RenderedRequest
from services.http import errors, streams
from services.http.bodies import Bodies
from services.http.listener import Listener
from services.http.openai import Service, generating
from services.http.tokens import MAX_BODY, informing
from tests.support.frontend_helpers import NAME, frontend, user, write_model
from tests.support.listening import Client, listening, post, run
from tests.support.waiting import eventually

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Frontend:
    return frontend(write_model("qwen2_5_vl", tmp_path_factory.mktemp("model") / "m"))


@dataclass
class Server:
    """What answers: `step_s` before each of the tokens, which `deadlines` are asked for."""

    front: Frontend
    room: int = 2
    step_s: float = 0.0
    timeout_s: float | None = None
    endless: bool = False
    inside: int = 0
    most: int = 0
    running: int = 0
    most_running: int = 0
    deadlines: list[float | None] = field(default_factory=list)
    seen: list[TriptychError] = field(default_factory=list)

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        if self.inside >= self.room:
            raise Unavailable("full", retry_after_s=1.0)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            self.inside -= 1

    async def run(self, rendered: RenderedRequest) -> AsyncGenerator[list[RequestOutput], None]:
        self.deadlines.append(rendered.generate.deadline_s)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            sampling = rendered.generate.sampling
            for number in itertools.count():
                await asyncio.sleep(self.step_s)
                last = number == sampling.max_tokens - 1 and not self.endless
                yield [
                    RequestOutput(
                        rendered.generate.request_id,
                        token_ids=[100],
                        finish_reason="length" if last else None,
                    )
                ]
                if last:
                    break
        finally:
            self.running -= 1

    def app(self) -> FastAPI:
        app = FastAPI()
        service = Service(
            self.front, self.run, lambda rendered, index: None, self.admitted,
            Bodies(1 << 20, 64 << 20), self.timeout_s,
        )  # fmt: skip
        app.include_router(generating(service))
        app.include_router(informing(self.front, self.admitted, Bodies(64 << 20, 64 << 20)))
        errors.install(app, self.seen.append)
        return app


Ask = Callable[..., Awaitable[tuple[int, Any]]]


@contextlib.asynccontextmanager
async def asking(server: Server) -> AsyncGenerator[tuple[Ask, tuple[str, int]], None]:
    async with listening(server.app(), Listener) as address, aiohttp.ClientSession() as session:

        async def ask(path: str, body: Any, **headers: str) -> tuple[int, Any]:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            url = f"http://{address[0]}:{address[1]}{path}"
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.post(url, data=data, headers=named) as response:
                return response.status, json.loads(await response.read())

        yield ask, address


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": user("Hi"), "max_tokens": 2, **fields}


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
    front: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_GRACE_S", 0.2)

    async def work() -> None:
        server = Server(front, room=5, timeout_s=0.5, endless=True)
        async with asking(server) as (ask, address), contextlib.AsyncExitStack() as stack:
            for _ in range(5):
                client = await stack.enter_async_context(Client(address, narrow=True))
                await client.send(post(CHAT, chat(stream=True, return_token_ids=True)))
            await eventually(lambda: server.running == 5)
            assert (await ask(CHAT, chat()))[0] == 503
            await eventually(lambda: server.inside == 0 and server.running == 0)
            server.endless = False
            assert (await ask(CHAT, chat()))[0] == 200

    run(work)


def test_prompts_share_one_deadline(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front, step_s=0.05)
        async with asking(server) as (ask, _):
            body = {"model": NAME, "prompt": ["Hi"] * 64, "max_tokens": 8}
            start = time.monotonic()
            status, answer = await ask(TEXT, body, X_Request_Timeout="1")
            assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
            assert time.monotonic() - start < 5.0
            given = [deadline for deadline in server.deadlines if deadline is not None]
            assert len(given) == len(server.deadlines) and min(given) < 0.7
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


@pytest.mark.parametrize("ids", [[-1], [2**32], [2**70], [10**6], [1, 2, -(2**40)], [1.5], ["a"]])
def test_token_ids_out_of_range_are_named(front: Frontend, ids: list[Any]) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/detokenize", {"tokens": ids})
            assert status == 400 and "tokens" in json.dumps(answer["error"])

    run(work)


def test_text_there_and_back(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            for text in ("Hello, world", "Hello " * 10_000):
                status, answer = await ask("/tokenize", {"prompt": text})
                assert status == 200 and answer["count"] == len(answer["tokens"])
                assert answer["max_model_len"] == front.info.max_model_len
                assert answer["tokens"] == front.tokenizer.encode(text, add_special_tokens=True)
                again = await ask("/detokenize", {"tokens": answer["tokens"]})
                assert again == (200, {"prompt": text})

    run(work)


def test_a_long_text_does_not_stop_the_others(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front, room=100)) as (ask, _):
            long = asyncio.ensure_future(ask("/tokenize", {"prompt": "Hello, world " * 80_000}))
            await asyncio.sleep(0.05)
            longest, turns, begun = 0.0, 0, time.monotonic()
            while not long.done():
                start = time.monotonic()
                await asyncio.sleep(0.005)
                longest, turns = max(longest, time.monotonic() - start), turns + 1
            assert (await long)[0] == 200
            assert turns > 10 and longest < (time.monotonic() - begun) / 2

    run(work)


def test_a_text_too_large_to_tokenize_is_refused(front: Frontend) -> None:
    async def work() -> None:
        async with asking(Server(front)) as (ask, _):
            status, answer = await ask("/tokenize", {"prompt": "x" * (MAX_BODY + 1)})
            assert (status, answer["error"]["code"]) == (413, "payload_too_large")

    run(work)
