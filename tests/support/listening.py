"""ASGI applications behind the project's own connections, on a port of the test's own process."""

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from services.http.client_bounds import Pace
from services.http.listener import Listener

QUICK = Pace(grace_s=0.3, bytes_per_s=2000.0)


class QuickListener(Listener):
    pace = QUICK


@contextlib.asynccontextmanager
async def listening(app: Any, kind: Any = QuickListener) -> AsyncIterator[tuple[str, int]]:
    """The address of `app`."""
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    protocol = functools.partial(kind, config, ServerState(), {})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()


class Client:
    """A raw connection. With `narrow`, hardly anything fits that it has not read."""

    def __init__(self, address: tuple[str, int], narrow: bool = False) -> None:
        self._socket = socket.socket()
        if narrow:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._address = address

    async def __aenter__(self) -> "Client":
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def rest(self) -> bytes:
        """All until the end of the connection, a broken one included."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16):
                data += piece
        return data

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer that has a length."""
        head, _, begun = (await self.until(b"\r\n\r\n")).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = bytearray(begun)  # to which a piece is added without a copy of all before it
        while len(body) < length:
            body += await self._piece()
        assert len(body) == length, "more than one answer"
        return int(head.split()[1]), bytes(body)

    async def until(self, mark: bytes) -> bytes:
        """All that has come when `mark` has."""
        data = b""
        while mark not in data:
            data += await self._piece()
        return data

    async def _piece(self) -> bytes:
        piece = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        assert piece, "the connection has ended"
        return piece


def post(path: str, body: Any, *headers: str) -> bytes:
    """A request with its length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def code_of(answer: bytes) -> str:
    """The code of an OpenAI error."""
    return str(json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"]["code"])


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())
