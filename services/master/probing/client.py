"""Questions to workers over HTTP. Imported when there is a worker to ask: aiohttp takes as long to
import as much of the rest of the master."""

from __future__ import annotations

import asyncio
import ssl
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, NamedTuple

import aiohttp
import msgspec
from msgspec import Meta

from protocol.decoding import decoded
from protocol.errors import UpstreamError
from protocol.fleet_key import NO_KEY, FleetKey
from protocol.registry import Name
from protocol.shortage import is_own_shortage
from services.master.fleet.added_workers import WorkerMetrics
from services.master.probing.shortage import NotAsked
from services.master.probing.vllm_metrics import MAX_BYTES, metrics_from

_AT_ONCE = 256  # below the open files that a process may have by default


class _Model(msgspec.Struct):
    id: Name
    parent: str | None = None


class ServedModels(NamedTuple):
    """`model`: the first that is no adapter; `aliases`: the others; `adapters` have a parent."""

    model: str
    aliases: list[str]
    adapters: list[str]


@dataclass
class Room:
    """What several answers that are kept may have together, in bytes."""

    left: int


class _Models(msgspec.Struct):
    data: Annotated[list[_Model], Meta(min_length=1)]


class ProbeClient:
    """An asynchronous context manager. What is no good answer is an `UpstreamError`; `NotAsked` if
    there was no question.

    A probe has `timeout_s` from when it is its turn. Suspects, who have not answered lately, have
    turns of their own, so that any number of them that hang delays no other worker.
    """

    def __init__(
        self, timeout_s: float, key: FleetKey = NO_KEY, tls: ssl.SSLContext | None = None
    ) -> None:
        self._session = aiohttp.ClientSession(
            headers=key.headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            # The semaphores are the limit: a wait for a connection of aiohttp's pool would count
            # against the timeout of a probe that has not begun.
            connector=aiohttp.TCPConnector(limit=0, ssl=tls or True),
        )
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._suspect_turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> ProbeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self._session.close()

    async def health(self, url: str, *, suspect: bool) -> None:
        """Returns if the worker at `url` is healthy."""
        await self._get(f"{url}/health", suspect)

    async def models_of(self, url: str) -> ServedModels:
        """What a healthy worker says that it serves."""
        body = await self._get(f"{url}/v1/models", suspect=False)

        def no_model(problem: str) -> UpstreamError:
            return UpstreamError(f"{url}/v1/models names no model: {problem}")

        listed = decoded(body, _Models, fail=no_model).data
        names = [one.id for one in listed if not one.parent] or [listed[0].id]
        adapters = [one.id for one in listed if one.parent and one.id not in names]
        return ServedModels(names[0], names[1:], adapters)

    async def metrics_of(self, url: str) -> WorkerMetrics | None:
        """What a healthy worker's metrics say; None if it has none, or other ones."""
        try:
            # Not every engine has this route, and one without it is no less healthy.
            return metrics_from(await self._get(f"{url}/metrics", suspect=False))
        except UpstreamError:
            return None

    async def page_of(self, url: str, room: Room) -> bytes:
        """A worker's /metrics, whole lines of it, which take `room`."""
        text = await self._get(f"{url}/metrics", False, room)
        return text[: text.rfind(b"\n") + 1]

    async def _get(self, url: str, suspect: bool, room: Room | None = None) -> bytes:
        """At most `MAX_BYTES` of the answer. Addresses of some forms are a `ValueError` to those
        who resolve them."""
        async with self._suspect_turns if suspect else self._turns:
            try:
                # Elsewhere is another process, which the key is not for.
                async with self._session.get(url, allow_redirects=False) as response:
                    if response.status != 200:
                        raise UpstreamError(f"{url} answers HTTP {response.status}")
                    return await _bounded(url, response.content, room or Room(sys.maxsize))
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if is_own_shortage(getattr(error, "os_error", None)):
                    raise NotAsked(str(error)) from None
                raise UpstreamError(str(error) or type(error).__name__) from None


async def _bounded(url: str, content: aiohttp.StreamReader, room: Room) -> bytes:
    found = bytearray()
    try:
        async for piece in content.iter_any():
            found += piece
            room.left -= len(piece)
            if room.left < 0:
                raise UpstreamError(f"{url}: there is no room for its answer beside the others")
            if len(found) >= MAX_BYTES:
                break
    except BaseException:
        room.left += len(found)  # it is not kept
        raise
    return bytes(found[:MAX_BYTES])
