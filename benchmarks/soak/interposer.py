"""What stands before a worker and answers in its place: with 503, with garbage, with nothing, or
as another service would that has the worker's address now: with a 404 of its own and no instance.

Only requests for work are answered so; probes reach the worker, which therefore looks healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import MappingProxyType
from typing import TypeAlias

from protocol.generate import INSTANCE_HEADER

_WORK = (b"POST /inference/", b"POST /v1/")
_START_S = 10.0
_ERROR = b'{"error":{"message":"no","type":"server_error","param":null,"code":"unavailable"}}'
_SPOILED = MappingProxyType(
    {"503": (b"503 Service Unavailable", _ERROR), "garbage": (b"200 OK", b"\x00\xff}{no json\x80")}
)
_STRANGER = "404 of another service"
_FOREIGN = (
    b"HTTP/1.1 404 Not Found\r\nserver: another\r\ncontent-type: text/html\r\n"
    b"connection: close\r\ncontent-length: 9\r\n\r\nNot Found"
)
MODES = ("nothing", *_SPOILED, _STRANGER)
_Reader: TypeAlias = asyncio.StreamReader
_Writer: TypeAlias = asyncio.StreamWriter


class Interposer:
    """Listens on a port of its own and passes on to `port`, each request on a new connection.

    `mode`: one of `MODES` while work is answered so, "" while the worker answers. `spoiled` counts
    what was answered so, `passed` the work that the worker got.
    """

    def __init__(self, port: int) -> None:
        self.mode = ""
        self.spoiled = self.passed = 0
        self._upstream = port
        self._name = b""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise RuntimeError("the interposer did not start")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        """Until `close`; what is under way then is ended by the end of the loop."""
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 26)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()

    async def _serve(self, reader: _Reader, writer: _Writer) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_length(head))
            work = head.startswith(_WORK)
            if work and self.mode:
                await self._spoil(reader, writer)
            else:
                self.passed += work
                await self._pass_on(_closing(head) + body, reader, writer)
        writer.close()

    async def _spoil(self, reader: _Reader, writer: _Writer) -> None:
        self.spoiled += 1
        if self.mode == _STRANGER:
            writer.write(_FOREIGN)
            await writer.drain()
            return
        if self.mode not in _SPOILED:
            await reader.read()  # until the other side gives up
            return
        status, body = _SPOILED[self.mode]
        writer.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%b: %b\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (status, INSTANCE_HEADER.encode(), self._name, len(body), body)
        )
        await writer.drain()

    async def _pass_on(self, request: bytes, reader: _Reader, writer: _Writer) -> None:
        """Until the worker has answered, or the other side leaves."""
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._upstream)
        ours.write(request)
        answered = asyncio.create_task(self._answer(theirs, writer))
        left = asyncio.create_task(reader.read())
        try:
            await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answered, left):
                task.cancel()
            await asyncio.gather(answered, left, return_exceptions=True)
            ours.close()

    async def _answer(self, theirs: _Reader, writer: _Writer) -> None:
        """The worker's name, which its answers bring, is what the spoiled ones bring too."""
        while piece := await theirs.read(1 << 16):
            if piece.startswith(b"HTTP/"):
                self._name = _field(piece, INSTANCE_HEADER.encode()) or self._name
            writer.write(piece)
            await writer.drain()


def _length(head: bytes) -> int:
    return int(_field(head, b"content-length") or 0)


def _field(head: bytes, name: bytes) -> bytes:
    """The value of a header field, b"" if there is none."""
    for line in head.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name.lower():
            return value.strip()
    return b""


def _closing(head: bytes) -> bytes:
    """The head of a request after whose answer the connection ends, which tells its end."""
    first, *lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([first, *kept, b"connection: close"]) + b"\r\n\r\n"
