"""Answers that are read as they come over aiohttp's connections, without a connection."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, cast

import aiohttp
import pytest

from protocol.errors import TriptychError
from proxy.upstream import sse
from proxy.upstream.failures import CallFailed
from proxy.upstream.patience import Patience, RawAnswer, events_of, patiently, read_whole
from proxy.upstream.sse import MAX_COMMENTS, MAX_EVENT


class Content:
    """Gives a body out in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.taken = 0

    async def readany(self) -> bytes:
        self.taken += 1
        return self._pieces.pop(0) if self._pieces else b""


class Response:
    def __init__(self, pieces: list[bytes]) -> None:
        self.content, self.headers, self.status = Content(pieces), dict[str, str](), 200


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


async def data_in(pieces: list[bytes]) -> list[bytes]:
    response: Any = Response(pieces)
    return [data async for data in events_of(response, Patience.of(60.0), "http://w")]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
async def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    body = b'data: {"a":1}\n\ndata: 2\n\ndata: [DONE]\n\n'
    assert await data_in(cut(body, size)) == [b'{"a":1}', b"2"]


async def test_a_long_event_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, find = 0, sse._end_of_events

    def counted(data: bytes) -> int:
        nonlocal looked
        looked += len(data)
        return find(data)

    monkeypatch.setattr(sse, "_end_of_events", counted)
    body = b"data: " + b"x" * 500_000 + b"\n\ndata: [DONE]\n\n"
    assert await data_in(cut(body, 1400)) == [b"x" * 500_000]
    assert looked < 2 * len(body)


async def test_an_event_without_an_end_is_given_up() -> None:
    with pytest.raises(TriptychError, match="an event without an end"):
        await data_in([b"data: "] + [bytes(1 << 20)] * (MAX_EVENT >> 20))


async def test_comments_without_an_end_are_given_up() -> None:
    comment = b": x\n\n"
    response = Response([comment] * MAX_COMMENTS)
    answer = RawAnswer(cast(Any, response), Patience.of(60.0), "http://w")
    with pytest.raises(TriptychError, match="comments without an end"):
        async for _ in answer.events():
            pass
    assert response.content.taken <= MAX_COMMENTS // len(comment) + 1


@pytest.mark.parametrize("fault", ["breaks", "more"])
async def test_after_its_end_mark_a_stream_cannot_fail(fault: str) -> None:
    """The client has the whole answer, and the worker is charged with nothing."""

    class Broken(Content):
        async def readany(self) -> bytes:
            if fault == "breaks" and not self._pieces:
                raise aiohttp.ClientPayloadError("it is gone")
            return await super().readany()

    response = Response([])
    response.content = Broken(
        [b"data: 1\n\n", b"data: [DONE]\n\n", b"data: 2\n\n"][: 2 + (fault == "more")]
    )
    answer = RawAnswer(cast(Any, response), Patience.of(60.0), "http://w")
    assert b"".join([events async for events in answer.events()]) == b"data: 1\n\ndata: [DONE]\n\n"


_BROKEN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"


@contextlib.asynccontextmanager
async def breaking_off() -> AsyncGenerator[aiohttp.ClientResponse, None]:
    """An answer whose second part does not say how long it is."""
    read = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_BROKEN)
        await read.wait()
        writer.write(b"no number\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, aiohttp.ClientSession() as session:
        host, port = server.sockets[0].getsockname()
        async with session.get(f"http://{host}:{port}") as response:
            asyncio.get_running_loop().call_later(0.05, read.set)
            yield response


async def test_an_answer_in_malformed_parts_is_a_failed_call() -> None:
    found = []
    async with breaking_off() as response:
        with pytest.raises(CallFailed) as failed:
            async for data in events_of(response, Patience.of(60.0), "http://w"):
                found.append(data)
    assert found == [b"1"] and failed.value.kind == "garbage"
    async with breaking_off() as response:
        with pytest.raises(CallFailed):
            await patiently(read_whole(response, 1000), Patience.of(60.0), "http://w")
