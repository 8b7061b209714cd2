"""HTTP to workers: kept connections, deadlines on everything, errors of our own tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from protocol.errors import DeadlineExceeded, UpstreamError, from_openai

_T = TypeVar("_T")
_MAX_EVENT = 1 << 24
_DONE = b"[DONE]"


class Unreachable(UpstreamError):
    """No connection, or it broke before there was an answer."""


class UpstreamClient:
    """One pool of connections to all workers; `close` ends them."""

    def __init__(self, connect_timeout_s: float, probe_timeout_s: float = 2.0) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
            auto_decompress=False,
        )
        self._probe_timeout = probe_timeout_s

    async def close(self) -> None:
        await self._session.close()

    async def get(self, url: str) -> bytes:
        """A small answer, within the probe timeout."""
        deadline = _in(self._probe_timeout)
        return await self._whole(await _bounded(self._session.get(url), deadline, url), deadline)

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        """The whole answer. Raises the worker's error, `UpstreamError` or `DeadlineExceeded`."""
        deadline = _in(timeout_s)
        call = self._session.post(url, data=body, headers=headers)
        return await self._whole(await _bounded(call, deadline, url), deadline)

    async def _whole(self, response: aiohttp.ClientResponse, deadline: float) -> bytes:
        async with response:
            body = await _bounded(response.read(), deadline, str(response.url))
        _check(response.status, body)
        return body

    async def stream(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event, the end mark excluded.

        Raises as `post` does, and `UpstreamError` if the stream ends without its end mark.
        Closing the generator closes the connection, which tells the worker to stop.
        """
        deadline = _in(timeout_s)
        call = self._session.post(url, data=body, headers=headers)
        async with await _bounded(call, deadline, url) as response:
            if response.status != 200:
                _check(response.status, await _bounded(response.read(), deadline, url))
            buffer = b""
            while piece := await _bounded(response.content.readany(), deadline, url):
                *events, buffer = (buffer + piece).split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data: ")
                    if data == _DONE:
                        await _bounded(response.content.readany(), deadline, url)
                        return
                    yield data
                if len(buffer) > _MAX_EVENT:
                    raise UpstreamError(f"{url}: an event without an end")
            raise UpstreamError(f"{url}: the stream ended early")


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def _bounded(work: Awaitable[_T], deadline: float, url: str) -> _T:
    """`work` before `deadline`, network failures as errors of our tree."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(f"{url}: no answer in time") from None
    except aiohttp.ClientError as error:
        raise Unreachable(f"{url}: {type(error).__name__}: {error}") from None


def _check(status: int, body: bytes) -> None:
    """Raise what the worker answered unless it is a success."""
    if status == 200:
        return
    try:
        content: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    raise from_openai(status, content)
