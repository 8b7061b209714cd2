"""A reader of a connection from which one byte was read to see whether it has ended."""

import asyncio
from typing import Any


class Prefixed:
    """A reader whose first byte is on its way by another task."""

    def __init__(self, reader: Any, first: "asyncio.Future[bytes]") -> None:
        self._reader, self._first = reader, first

    async def readuntil(self, end: bytes) -> bytes:
        first = await self._first
        if not first:
            raise asyncio.IncompleteReadError(b"", None)
        return first + bytes(await self._reader.readuntil(end))

    async def readexactly(self, count: int) -> bytes:
        return bytes(await self._reader.readexactly(count))

    async def read(self, count: int) -> bytes:
        return bytes(await self._reader.read(count))
