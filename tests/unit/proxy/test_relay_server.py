"""The edge before clients that write what they like: cut anywhere, pipelined, forged, slow."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from proxy.relay.serving import connection_class
from services.http.client_bounds import Pace
from services.http.turns import SharedState
from tests.conftest import Pass
from tests.support.echoing import Echo, application, edge
from tests.support.listening import Client, code_of, post, run
from tests.support.waiting import eventually
from tests.unit.proxy.test_relay_request_parser import CHAT, FORGED, REQUESTS


def test_a_request_cut_at_any_byte_is_answered() -> None:
    async def work() -> None:
        hot = Echo()
        async with edge(hot) as address, Client(address) as client:
            for data, body in ((post(CHAT, b"12"), b"hot:12"), (post("/v1/x", b"12"), b"cold:12")):
                for cut in range(1, len(data)):
                    await client.send(data[:cut])
                    for _ in range(2):  # the first piece is read in the second turn
                        await asyncio.sleep(0)
                    await client.send(data[cut:])
                    assert await client.answer() == (200, body), cut
            assert hot.inside == 0

    run(work)


def test_a_first_piece_is_kept_when_nothing_is_relayed_any_more() -> None:
    async def work() -> None:
        hot = Echo()
        async with edge(hot) as address, Client(address) as client:
            data = post(CHAT, b"12")
            await client.send(data[:10])
            await asyncio.sleep(0.05)
            hot.takes_any = False
            await client.send(data[10:])
            assert await client.answer() == (200, b"cold:12")

    run(work)


def test_an_empty_line_too_many_is_overlooked() -> None:
    async def work() -> None:
        async with edge(Echo()) as address, Client(address) as client:
            for lead in (b"\r\n", b"\n", b"\r\n\r\n"):
                await client.send(lead + post(CHAT, b"12"))
                assert await client.answer() == (200, b"hot:12")
                await client.send(b"\r\n")
                await asyncio.sleep(0.02)
                await client.send(post(CHAT, b"3"))
                assert await client.answer() == (200, b"hot:3")

    run(work)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "GET", "PUT"])
def test_other_methods_are_for_the_application(method: str) -> None:
    async def work() -> None:
        async with edge(Echo()) as address, Client(address) as client:
            await client.send(f"{method} {CHAT} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            if method == "HEAD":
                await asyncio.sleep(0.05)
                await client.send(post("/other", b"", "connection: close"))
                assert (await client.rest()).endswith(b"\r\n\r\ncold:")
            else:
                assert await client.answer() == (200, b"cold:")

    run(work)


def test_what_is_pipelined_is_asked_again_elsewhere() -> None:
    async def work() -> None:
        async with edge(Echo()) as address, Client(address) as client:
            await client.send(post(CHAT, b"one") + post(CHAT, b"two"))
            answers = await client.rest()
            assert b"hot:one" in answers and b"two" not in answers
            assert b"connection: close" in answers

    run(work)


def test_uploads_count_from_their_headers_on_and_end_in_time(passes: Pass) -> None:
    async def work() -> None:
        hot = Echo(room=2)
        async with edge(hot, Pace(grace_s=10)) as address, contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(address)) for _ in range(3)]
            data = post(CHAT, b"x" * 1000, "expect: 100-continue")
            head = data[:-1000]
            for client in clients[:2]:
                await client.send(head + b"x")
            await eventually(lambda: hot.inside == 2)
            await clients[2].send(head)
            status, body = await clients[2].answer()
            assert status == 503 and code_of(body) == "unavailable"
            await clients[1].__aexit__()
            await eventually(lambda: hot.inside == 1)
            passes(11)
            assert code_of(await clients[0].rest()) == "request_timeout"
            assert hot.inside == 0
            last = await stack.enter_async_context(Client(address))
            await last.send(post(CHAT, b"1"))
            assert await last.answer() == (200, b"hot:1")
            assert [error.status for error in hot.seen] == [503, 408]

    run(work)


def test_a_request_handed_to_the_application_is_not_counted_twice() -> None:
    async def work() -> None:
        hot = Echo(takes_all=False)
        async with edge(hot) as address, Client(address) as client:
            for _ in range(3):
                await client.send(post(CHAT, b"12"))
                assert await client.answer() == (200, b"cold:12")
            assert hot.inside == 0

    run(work)


def test_a_client_that_leaves_before_its_task_has_begun_is_counted_out() -> None:
    async def work() -> None:
        hot = Echo(gate=asyncio.Event())
        async with edge(hot) as address:
            for _ in range(20):
                async with Client(address) as client:
                    await client.send(post(CHAT, b"1"))
            await asyncio.sleep(0.05)
            await eventually(lambda: hot.inside == 0)

    run(work)


def test_a_large_answer_counts_until_it_is_taken() -> None:
    async def work() -> None:
        hot = Echo(size=40_000_000)
        async with edge(hot) as address:
            async with Client(address) as client:
                await client.send(post(CHAT, b"1"))
                await asyncio.sleep(0.1)
                assert hot.inside == 1
                assert len((await client.answer())[1]) == 40_000_005
                await eventually(lambda: hot.inside == 0)
            async with Client(address, narrow=True) as client:
                await client.send(post(CHAT, b"1"))
                await eventually(lambda: hot.inside == 1)
            await eventually(lambda: hot.inside == 0)

    run(work)


@pytest.mark.parametrize("name", FORGED)
def test_forged_requests_get_one_answer_and_the_door(name: str) -> None:
    async def work() -> None:
        hot = Echo()
        async with edge(hot) as address, Client(address) as client:
            await client.send(FORGED[name])
            answer = await client.rest()
            assert answer.count(b"HTTP/1.1 ") == 1
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_value"
            assert hot.inside == 0

    run(work)


class Unread(asyncio.Transport):
    """A transport without a client behind it."""

    closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        assert not self.closed or not data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


class OneTurn:
    """Lets one request begin; `asked`: how many have asked to."""

    asked = 0

    def begin(self) -> bool:
        self.asked += 1
        return self.asked == 1

    def wait(self, caller: bytes, go_on: Callable[[], None]) -> None:
        raise AssertionError("a piece of a request waits as if it were a request")


@pytest.mark.parametrize("cuts", [(10, 60), (60, 118), (118, 119)], ids=str)
def test_pieces_of_a_request_do_not_wait_for_turns_of_their_own(cuts: tuple[int, int]) -> None:
    """A slow client of a crowd would have its clock started anew at each piece."""

    async def work() -> None:
        hot, state = Echo(), SharedState()
        state.beginnings = turns = OneTurn()  # type: ignore[assignment]
        config = uvicorn.Config(application, log_config=None, lifespan="off")
        protocol = connection_class(hot)(config, state, {})
        protocol.connection_made(Unread())
        data = post(CHAT, b"1" * 100)
        for begin, end in itertools.pairwise((0, *cuts, len(data))):
            assert hot.inside == 0 or begin
            protocol.data_received(data[begin:end])
        await eventually(lambda: hot.inside == 0)
        assert turns.asked == 1
        protocol.connection_lost(None)

    asyncio.run(work())


CORPUS = [data for data, _ in REQUESTS.values()] + list(FORGED.values()) + [post("/x", b"abc")]


@given(
    parts=st.lists(st.sampled_from(CORPUS), min_size=1, max_size=3),
    edits=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=4)), max_size=4
    ),
    steps=st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=1, max_size=12),
    room=st.integers(0, 2),
    takes_all=st.booleans(),
)
def test_after_any_bytes_every_request_is_counted_out(
    parts: list[bytes],
    edits: list[tuple[int, int, bytes]],
    steps: list[tuple[int, bool]],
    room: int,
    takes_all: bool,
) -> None:
    data = b"".join(parts)
    for place, width, put in edits:
        data = data[:place] + put + data[place + width :]

    async def work() -> None:
        hot, transport = Echo(room=room, takes_all=takes_all), Unread()
        config = uvicorn.Config(application, log_config=None, lifespan="off")
        protocol = connection_class(hot)(config, ServerState(), {})
        protocol.connection_made(transport)
        place = 0
        for size, pause in itertools.cycle(steps):
            if place >= len(data) or transport.closed:
                break
            protocol.data_received(data[place : place + size])
            place += size
            if pause:
                await asyncio.sleep(0)
            assert 0 <= hot.inside <= 1
        protocol.connection_lost(None)
        assert hot.inside == 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert hot.inside == 0

    asyncio.run(work())
