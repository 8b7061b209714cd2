"""Connections that there is no room for wait, and none is cut off; on real sockets."""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.http import accepting
from services.http.accepting import Acceptor, Room
from services.http.open_files import SPARE, raise_limit
from services.http.server import bind
from tests.support.listening import Client
from tests.support.shortage import no_files_left
from tests.support.waiting import eventually


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def __init__(self, server: "Accepting") -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.open.add(self)
        self._server.most = max(self._server.most, len(self._server.open))

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)


class Accepting:
    """A server with so many `places`; `open` are its connections, `most` how many there were."""

    def __init__(self, places: int) -> None:
        self.open: set[Echo] = set()
        self.crowded: list[bool] = []
        self.most = 0
        self.room = Room(0.5)
        self.room.limit = places
        self.room.count(self.open)
        self.listener = bind("127.0.0.1", 0)
        self.address = self.listener.getsockname()
        self.acceptor = Acceptor(self.listener, lambda: Echo(self), self.room, self.crowded.append)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Accepting"]:
        try:
            yield self
        finally:
            self.acceptor.close()
            self.listener.close()


async def echoed(client: Client) -> None:
    await client.send(b"x")
    await client.until(b"x")


def end(server: Accepting) -> None:
    """As a server's shutdown does it."""
    server.acceptor.take_waiting()
    server.acceptor.close()
    server.listener.close()


def on_both_loops(work: Any) -> None:
    """uvloop is what proxies and masters run on, asyncio's what workers do."""
    for factory in (None, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(work(), 20))


def test_connections_beyond_the_room_wait_for_their_turn() -> None:
    async def work() -> None:
        async with Accepting(2).running() as server, contextlib.AsyncExitStack() as stack:
            clients = [Client(server.address) for _ in range(9)]
            for client in clients:
                await stack.enter_async_context(client)
            for client in clients:
                await echoed(client)
                await client.__aexit__()
            assert server.most == 2
            assert server.crowded and not server.crowded[-1]

    on_both_loops(work)


def test_a_server_is_not_told_to_make_room_that_no_client_wants() -> None:
    async def work() -> None:
        async with Accepting(1).running() as server, Client(server.address) as client:
            await echoed(client)
            await asyncio.sleep(0.2)
            assert not any(server.crowded)

    on_both_loops(work)


def test_a_process_without_files_takes_connections_once_it_has_some() -> None:
    async def work() -> None:
        async with Accepting(100).running() as server, contextlib.AsyncExitStack() as stack:
            await echoed(await stack.enter_async_context(Client(server.address)))
            other = Client(server.address)
            with no_files_left():
                await stack.enter_async_context(other)
                await asyncio.sleep(0.2)
                assert len(server.open) == 1
            await echoed(other)

    on_both_loops(work)


def test_what_the_kernel_has_taken_is_served_before_the_end() -> None:
    async def work() -> None:
        server = Accepting(100)
        async with server.running(), Client(server.address) as client:
            end(server)
            await echoed(client)

    on_both_loops(work)


def test_all_that_the_kernel_has_taken_are_served_before_the_end() -> None:
    """More than are taken in a turn of the loop, and some that there is no room for."""

    async def work() -> None:
        server = Accepting(50)
        async with server.running(), contextlib.AsyncExitStack() as stack:
            # Without a turn of the loop, in which it would accept some of them.
            for _ in range(60):
                stack.enter_context(socket.create_connection(server.address))
            end(server)
            await eventually(lambda: len(server.open) == 50)

    on_both_loops(work)


def test_room_that_has_just_come_is_used_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "_LOOK_S", 3600.0)

    async def work() -> None:
        server = Accepting(1)
        async with server.running(), Client(server.address) as first:
            await echoed(first)
            async with Client(server.address) as second:
                await first.__aexit__()
                await eventually(lambda: not server.open)
                end(server)
                await echoed(second)

    on_both_loops(work)


def test_clients_get_their_share_of_the_files_that_are_left() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        used = len(list(Path("/proc/self/fd").iterdir()))
        room = Room(0.25)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert abs(room.limit - (1024 - used - SPARE) / 4) <= 2
    room.count(range(3))
    room.count(range(4))
    assert room.left == room.limit - 7


def test_the_limit_is_raised_and_both_are_said(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        with caplog.at_level(logging.INFO):
            raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = caplog.messages
    assert "512" in line and str(hard) in line
