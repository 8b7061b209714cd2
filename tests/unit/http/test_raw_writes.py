"""Heads and bodies go out together, and a head alone no later than the loop's next turn."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from services.http.raw_writes import JoinedWrites
from tests.support.listening import Client, listening, run


class Recorder:
    """A transport that keeps what each call wrote."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


Step = Callable[[JoinedWrites], None]


def head(answer: JoinedWrites) -> None:
    answer.write(b"head ")


def body(answer: JoinedWrites) -> None:
    answer.write(b"body ")


LARGE = b"body " * (1 << 16)


def large(answer: JoinedWrites) -> None:
    answer.write(LARGE)


@pytest.mark.parametrize(
    ("turns", "sent"),
    [
        ([[head, body]], [b"head body "]),
        ([[head, body, body]], [b"head body ", b"body "]),
        ([[head, large]], [b"head " + LARGE]),
        ([[head], []], [b"head "]),
        ([[head], [body]], [b"head ", b"body "]),
        ([[head, body], [body], [body]], [b"head body ", b"body ", b"body "]),
        ([[head, JoinedWrites.close]], [b"head "]),
        ([[head, body, JoinedWrites.close]], [b"head body "]),
    ],
)
def test_what_follows_a_head_at_once_goes_with_it(
    turns: list[list[Step]], sent: list[bytes]
) -> None:
    async def work() -> None:
        recorder = Recorder()
        answer = JoinedWrites(cast(asyncio.Transport, recorder), asyncio.get_running_loop())
        for steps in turns:
            for step in steps:
                step(answer)
            await asyncio.sleep(0)
        assert recorder.sent == sent
        assert answer.is_closing() == recorder.closed == (JoinedWrites.close in turns[-1])

    run(work)


def test_a_head_reaches_a_client_before_its_body_is_there() -> None:
    async def work() -> None:
        more = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            headers = [(b"content-length", b"4")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await more.wait()
            await send({"type": "http.response.body", "body": b"late"})

        async with listening(app) as address, Client(address) as client:
            await client.send(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            first = await client.until(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 200 ")
            more.set()
            assert await client.rest() == b"late"

    run(work)
