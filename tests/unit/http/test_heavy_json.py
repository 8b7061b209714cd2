"""JSON that takes long to decode, or to look through, holds up no other request."""

import asyncio
import threading
from typing import Any

import pytest

from protocol.json_size import MOST_VALUES
from services.frontend import render
from services.frontend.render import Frontend
from services.http.bodies import Bodies
from tests.support.listening import run
from tests.support.openai_server import CHAT, TEXT, Server, asking, chat

HEAVY = b",".join([b"[]"] * MOST_VALUES)
BODIES = {
    CHAT: b'{"messages":[{"role":"user","content":[%b]}]}',
    CHAT + "/batch": b'{"messages":[[{"role":"user","content":[%b]}]]}',
    TEXT: b'{"prompt":[%b]}',
    "/v1/messages": b'{"max_tokens":1,"messages":[{"role":"user","content":[%b]}]}',
    "/v1/messages/count_tokens": b'{"messages":[{"role":"user","content":[%b]}]}',
    "/v1/responses": b'{"input":[%b]}',
    "/tokenize": b'{"messages":[{"role":"user","content":[%b]}]}',
    "/detokenize": b'{"tokens":[%b]}',
    "/tokenizer/encode": b'{"prompt":[%b]}',
}


def test_every_route_refuses_it_and_says_what_the_limit_is(front: Frontend) -> None:
    async def work() -> None:
        server = Server(front, largest=8 << 20)
        async with asking(server) as (ask, _):
            for path, body in BODIES.items():
                status, answer = await ask(path, body % HEAVY)
                assert (path, status) == (path, 413)
                assert f"more than {MOST_VALUES} objects" in answer["error"]["message"]
            assert (await ask(CHAT, chat()))[0] == 200
            assert server.inside == 0

    run(work)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1])
def test_a_large_body_is_decoded_beside_the_event_loop(size: int) -> None:
    async def work() -> None:
        bodies = Bodies(1 << 20, 1 << 20)
        thread = await bodies.decoded(bytes(size), lambda body: threading.get_ident())
        assert (thread == threading.get_ident()) == (size <= 1 << 16)

    run(work)


def test_few_are_decoded_at_once() -> None:
    async def work() -> None:
        bodies, inside, most, end = Bodies(1 << 20, 1 << 20), 0, 0, threading.Event()
        lock, full = threading.Lock(), threading.Event()

        def decode(body: bytes) -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
                if inside == 2:
                    full.set()
            assert end.wait(20)
            with lock:
                inside -= 1

        asked = [asyncio.ensure_future(bodies.decoded(bytes(1 << 17), decode)) for _ in range(6)]
        await asyncio.to_thread(full.wait, 20)
        # Small ones do not wait for them.
        assert await bodies.decoded(b"x", len) == 1
        end.set()
        await asyncio.gather(*asked)
        assert most == 2

    run(work)


@pytest.mark.parametrize("large", [False, True])
def test_parts_of_a_large_request_are_looked_through_beside_the_event_loop(
    front: Frontend, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noting(name: str) -> None:
        work = getattr(render, name)

        def noted(*args: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*args)

        monkeypatch.setattr(render, name, noted)

    noting("read_messages")
    noting("tool_use")

    async def work() -> None:
        # As many bytes that are no text of its messages.
        fields: dict[str, Any] = {"metadata": {"a": "x" * (1 << 16)}} if large else {}
        async with asking(Server(front)) as (ask, _):
            assert (await ask(CHAT, chat(**fields)))[0] == 200
        own = threading.get_ident()
        assert all((thread == own) != large for thread in threads.values()) and len(threads) == 2

    run(work)
