"""One request on a kept connection to a worker, without the worker."""

import asyncio
from typing import Any, cast

import pytest

from proxy.upstream.answer import AnswerLimits
from proxy.upstream.connection import Connection
from proxy.upstream.exchange import Exchange
from proxy.upstream.failures import CallFailed
from proxy.upstream.http1 import KnownHeads, chunk

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    """Takes all that is written."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None:
        self.closed = True


class Line:
    """A connection, and how often it was free again."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.released = 0
        self.transport = Transport()
        self.connection = Connection(self.loop, "http://w", KnownHeads(8), self._release)
        self.connection.connection_made(cast(Any, self.transport))

    def _release(self, connection: Connection) -> None:
        self.released += 1

    def ask(self, limits: AnswerLimits, sink: Any = None) -> Exchange:
        return Exchange(self.loop, self.connection, b"", (b"",), 0, limits, sink)


async def test_a_stream_that_stalls_is_not_given_the_time_of_its_first_event() -> None:
    line, had = Line(), list[bytes]()
    exchange = line.ask(AnswerLimits(600.0, 0.02, 1000), had.append)
    line.connection.data_received(STREAM + chunk(b"data: 1\n\n"))
    assert (await exchange.ready).body == b"data: 1\n\n"
    line.connection.data_received(chunk(b"data: 2\n\n"))
    async with asyncio.timeout(60):
        with pytest.raises(CallFailed) as caught:
            await exchange.forward()
    assert caught.value.kind == "stalled" and had == [b"data: 2\n\n"]
    assert line.transport.closed


@pytest.mark.parametrize("told", [False, True])
async def test_a_connection_that_is_lost_before_it_is_used_fails_the_call(told: bool) -> None:
    """uvloop's transport raises where it is written to by then."""
    line = Line()
    line.transport.closing = True
    if told:
        line.connection.connection_lost(None)
    exchange = line.ask(AnswerLimits(60.0, 60.0, 1000))
    async with asyncio.timeout(30):
        with pytest.raises(CallFailed) as caught:
            await exchange.ready
    assert caught.value.kind == "dropped" and line.released == 0


async def test_answers_under_one_head_are_told_apart() -> None:
    line, limits = Line(), AnswerLimits(60.0, 60.0, 1000)
    for number, body in enumerate([b'{"a": 1}', b"{}", b"[" * 1000, b'{"a": 22}']):
        exchange = line.ask(limits)
        line.connection.data_received(HEAD % len(body) + body)
        assert (await exchange.ready).body == body
        assert line.released == number + 1


async def test_a_known_head_does_not_let_too_large_an_answer_pass() -> None:
    line = Line()
    for size, most in ((10, 10), (10, 9)):
        exchange = line.ask(AnswerLimits(60.0, 60.0, most))
        line.connection.data_received(HEAD % size + b"x" * size)
        if size <= most:
            await exchange.ready
    with pytest.raises(CallFailed) as caught:
        await exchange.ready
    assert caught.value.kind == "too_large"


async def test_half_an_answer_under_a_known_head_is_awaited() -> None:
    line, limits = Line(), AnswerLimits(60.0, 60.0, 1000)
    for pieces in ([HEAD % 4 + b"full"], [HEAD % 4 + b"ha", b"lf"], [(HEAD % 4)[:30]]):
        exchange = line.ask(limits)
        for piece in pieces:
            line.connection.data_received(piece)
        if len(pieces) > 1:
            assert (await exchange.ready).body == b"half"
    line.connection.connection_lost(None)
    with pytest.raises(CallFailed) as caught:
        await exchange.ready
    assert caught.value.kind == "dropped" and caught.value.stale


HOSTILE = {
    "headers behind a 1xx": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\na: ", b"x" * 1000),
    "one 1xx after the other": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40),
    "trailers": (STREAM + chunk(b": " + b"x" * 60_000) + b"0\r\na: ", b"x" * 1000),
    "a chunk's extension": (STREAM + chunk(b": x") + b"1;", b"x" * 1000),
    "comments": (STREAM, chunk(b": x\n\n" * 200)),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_has_no_end_is_cut_off(name: str) -> None:
    """After some 64 KiB: the parser puts a header together anew with each of its pieces."""
    line = Line()
    exchange = line.ask(AnswerLimits(600.0, 600.0, 1 << 28), lambda data: None)
    begun, endless = HOSTILE[name]
    if begun:
        line.connection.data_received(begun)
    for _ in range(80):
        if not line.transport.closed:
            line.connection.data_received(endless)
    assert line.transport.closed
    with pytest.raises(CallFailed, match="without an end") as caught:
        await exchange.ready
    assert caught.value.kind == "garbage"


async def test_trailers_of_a_stream_under_way_are_cut_off() -> None:
    line, had = Line(), list[bytes]()
    exchange = line.ask(AnswerLimits(600.0, 600.0, 1000), had.append)
    line.connection.data_received(STREAM + chunk(b"data: 1\n\n"))
    await exchange.ready
    forwarding = asyncio.ensure_future(exchange.forward())
    await asyncio.sleep(0)
    for _ in range(200):  # each with an event, however long the framing around them is in all
        line.connection.data_received(
            chunk(b"data: 2\n\n").replace(b"\r\n", b";%b\r\n" % (b"x" * 999), 1)
        )
    assert len(had) == 200 and not line.transport.closed
    line.connection.data_received(b"0\r\na: ")
    for _ in range(80):
        if not line.transport.closed:
            line.connection.data_received(b"x" * 1000)
    assert line.transport.closed
    with pytest.raises(CallFailed, match="without an end"):
        await forwarding
