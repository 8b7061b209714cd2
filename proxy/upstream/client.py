"""HTTP to workers: kept connections, deadlines on everything, errors of our own tree."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from protocol.decoding import decoded
from protocol.errors import TriptychError, UpstreamError, from_openai
from protocol.fleet_key import NO_KEY, FleetKey, refuses_key
from protocol.generate import INSTANCE_HEADER
from proxy.upstream.connector import Connector, Sent, noting_kept, on_live_connection
from proxy.upstream.failures import (
    FORBIDDEN,
    NOT_A_WORKER,
    OTHER_INSTANCE,
    UNREACHABLE,
    WRONG_KEY,
    CallFailed,
    is_no_worker,
    refused_key,
    refuses_caller,
)
from proxy.upstream.messages import Messages
from proxy.upstream.patience import Patience, RawAnswer, events_of, patiently, read_whole
from proxy.upstream.time_limits import unhurried
from services.http.tasks import ended

_MAX_ANSWER = 1 << 28  # bytes of an answer that is not streamed
_MAX_ERROR = 1 << 20  # bytes
_LEFTOVER_S = 1.0  # for longer, a new connection costs less
_EVENTS = "text/event-stream"


class UpstreamClient:
    """One pool of connections to all workers, and what goes on over them; `close` ends both.
    `messages`: what our own servers are asked on faster ones.
    `authorization` is sent with every call that has none of its own, `key` with every call. `tls`:
    how https:// URLs are called."""

    def __init__(
        self,
        connect_timeout_s: float,
        probe_timeout_s: float = 1.5,
        authorization: str = "",
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        given = {"authorization": authorization} if authorization else {}
        self._session = aiohttp.ClientSession(
            headers={**given, **key.headers},
            connector=Connector(connect_timeout_s, tls),
            # Every call is bounded by `patiently`, connecting by `unhurried`: a timer of aiohttp
            # would count the time in which this process was busy.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            # What is passed on goes as it came.
            auto_decompress=False,
            trace_configs=[noting_kept()],
        )
        self.messages = Messages(connect_timeout_s, authorization, key, tls)
        self._probe_timeout = probe_timeout_s
        self._beside: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        # Before the session is closed, over which they still tell workers something.
        for task in tuple(self._beside):
            await ended(task)
        self.messages.close()
        await self._session.close()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Have work done with this client beside requests; `close` ends it."""
        task = asyncio.create_task(work)
        # The event loop holds tasks weakly: without this set one could be collected as it waits.
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def reaches(self, url: str) -> bool:
        """Whether anything answers at the URL's address, within the probe timeout."""
        return await reachable(url, self._probe_timeout)

    async def get(
        self, url: str, patience: Patience | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The whole answer, within the probe timeout if nothing else is said; raises as `post`."""
        patience = patience or Patience.of(self._probe_timeout)
        # No call follows a redirect: it would take the fleet key wherever it points.
        call = self._session.get(url, headers=headers, allow_redirects=False)
        return await self._whole(await patiently(call, patience, url), patience)

    async def introduction(self, url: str) -> tuple[bytes, bool]:
        """As `get`, and whether the answer names the instance that gave it."""
        patience = Patience.of(self._probe_timeout)
        call = self._session.get(url, allow_redirects=False)
        response = await patiently(call, patience, url)
        body = await self._whole(response, patience)
        return body, bool(response.headers.get(INSTANCE_HEADER))

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], patience: Patience | None = None
    ) -> bytes:
        """The whole answer, in time as `get`'s. Raises the worker's error, `UpstreamError` or
        `DeadlineExceeded`."""
        patience = patience or Patience.of(self._probe_timeout)
        call = self._session.post(url, data=body, headers=headers, allow_redirects=False)
        return await self._whole(await patiently(call, patience, url), patience, called=True)

    async def _whole(
        self, response: aiohttp.ClientResponse, patience: Patience, *, called: bool = False
    ) -> bytes:
        async with response:
            _check_instance(response, patience)
            body = await patiently(read_whole(response, _MAX_ANSWER), patience, str(response.url))
        after = response.headers.get("retry-after", "")
        raise_for_status(str(response.url), response.status, body, after, called=called)
        return body

    async def stream(
        self, url: str, body: bytes, headers: Mapping[str, str], patience: Patience
    ) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event, the end mark excluded.

        Raises as `post` does, and `UpstreamError` if the stream ends without its end mark.
        Closing the generator closes the connection, which tells the worker to stop.
        """
        call = self._session.post(url, data=body, headers=headers, allow_redirects=False)
        async with await patiently(call, patience, url) as response:
            _check_instance(response, patience)
            if response.status != 200:
                body = await patiently(read_whole(response, _MAX_ANSWER), patience, url)
                after = response.headers.get("retry-after", "")
                raise_for_status(url, response.status, body, after, called=True)
            if response.content_type != _EVENTS:
                raise UpstreamError(f"{url} answered {response.content_type}, not {_EVENTS}")
            async for event in events_of(response, patience, url):
                yield event

    @contextlib.asynccontextmanager
    async def opened(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], patience: Patience
    ) -> AsyncGenerator[RawAnswer, None]:
        """An answer of any status and kind, to be read while the context lasts."""

        def call(sent: Sent) -> Awaitable[aiohttp.ClientResponse]:
            return self._session.request(
                method, url, data=body or None, headers=headers, allow_redirects=False,
                trace_request_ctx=sent,
            )  # fmt: skip

        async with await on_live_connection(call, patience, url) as response:
            yield RawAnswer(response, patience, url)

    def finish(self, events: AsyncGenerator[bytes, None]) -> None:
        """Read what is left of a `stream` whose reader has all it needs, beside everything else and
        for a moment at most: its connection is kept then, and closed otherwise."""
        self.beside(_leftover(events))


async def reachable(url: str, timeout_s: float) -> bool:
    """False if neither a connection nor a refusal comes: a host that is off or cut off. A process
    that is stopped or busy is reachable, as its kernel takes connections for it."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        connecting = asyncio.open_connection(parts.hostname, port)
        _, writer = await unhurried(connecting, timeout_s)
    except TimeoutError:
        return False
    except OSError as error:
        # A name that is not found says nothing of the host: it may answer, and is not cut off.
        return isinstance(error, socket.gaierror) or error.errno not in UNREACHABLE
    writer.transport.abort()
    return True


async def _leftover(events: AsyncGenerator[bytes, None]) -> None:
    async with contextlib.aclosing(events):
        with contextlib.suppress(TimeoutError, TriptychError):
            async with asyncio.timeout(_LEFTOVER_S):
                async for _ in events:
                    pass


def _check_instance(response: aiohttp.ClientResponse, patience: Patience) -> None:
    worker, name = patience.worker, response.headers.get(INSTANCE_HEADER, "")
    if worker is not None and not worker.may_say(name, response.status):
        whose = f"of instance {name[:64]}" if name else "that names no instance"
        text = f"{response.url}: HTTP {response.status} {whose}: the worker has left its address"
        raise CallFailed(text, OTHER_INSTANCE)


def raise_for_status(url: str, status: int, body: bytes, retry_after: str, *, called: bool) -> None:
    """Raise what a worker answered unless it is a success. `called`: a worker has the route."""
    if status == 200:
        return
    content: Any = None
    # A longer one is no error that a client could read, and may take seconds to decode.
    if len(body) <= _MAX_ERROR:
        with contextlib.suppress(UpstreamError):
            content = decoded(body, dict, fail=UpstreamError)
    if refuses_key(status, content):
        raise CallFailed(f"{url} has another --fleet-key than this proxy", WRONG_KEY)
    if called and refuses_caller(status):
        raise CallFailed(refused_key(url, status), FORBIDDEN)
    if called and is_no_worker(status, content):
        raise CallFailed(f"{url} answered HTTP {status} and is no worker", NOT_A_WORKER)
    error = from_openai(status, content)
    error.retry_after_s = float(retry_after) if retry_after.isdecimal() else None
    raise error
