"""The HTTP side of a mock worker: a socket, routes, answers that can go wrong."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from protocol.errors import InternalError, PayloadTooLarge, TriptychError
from protocol.fleet_key import HEADER
from services.http.accepting import Acceptor, Room
from services.http.access import Access
from services.http.server import bind
from services.mock.answering import Answering, Cut
from services.mock.instance import Instance

logger = logging.getLogger("mock")
Handler = Callable[[Instance, Answering], Awaitable[web.StreamResponse]]
Routes = Mapping[tuple[str, str], Handler]


class Server:
    """Listens for one instance. Call `open`, then `close`; it may be opened again."""

    def __init__(
        self, instance: Instance, routes: Routes, room: Room, access: Access | None = None
    ) -> None:
        """`access`: which callers may ask for what; without it all may ask for everything."""
        self.instance = instance
        self._access = access or Access()
        self._routes = routes
        self._room = room
        self._listening: Acceptor | None = None
        self._listener: socket.socket | None = None
        self._reopen: asyncio.TimerHandle | None = None
        self._protocols = web.Server(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=75.0,
        )
        room.count(self._protocols.connections)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        size = self.instance.config.max_body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=size)

    async def open(self, listener: socket.socket | None = None) -> None:
        """Accept connections on the instance's port, bound already or bound here; `ConfigError` if
        it is taken."""
        if self._listening is not None:
            return
        settings = self.instance.settings
        self._listener = listener or bind(settings.host, settings.port)
        self._listening = Acceptor(self._listener, self._protocols, self._room)

    def refuse(self, duration_s: float) -> None:
        """Close the port and cut every connection; open it again after `duration_s`, if not 0."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for protocol in self._protocols.connections:
            if protocol.transport is not None:
                # Not `close`, which would first send what is in the buffers.
                protocol.transport.abort()
        if self._reopen is not None:
            self._reopen.cancel()
        if duration_s:
            loop = asyncio.get_running_loop()
            self._reopen = loop.call_later(
                duration_s, lambda: asyncio.ensure_future(self._open_again())
            )

    async def _open_again(self) -> None:
        try:
            await self.open()
        except TriptychError as error:
            logger.error("%s cannot be opened again: %s", self.instance.url, error)

    async def close(self) -> None:
        """Stop listening; connections are cut."""
        if self._reopen is not None:
            self._reopen.cancel()
        self.refuse(0.0)
        await self._protocols.shutdown(timeout=0.1)
        self.instance.driver.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        instance = self.instance
        answering = Answering(instance, request, self.refuse)
        try:
            self._check_key(request)
            handler = self._route(request)
            await answering.begin()
            return await handler(instance, answering)
        except Cut:
            answering.cut()
            # aiohttp wants a response, which is not sent any more.
            return web.Response()
        except web.HTTPRequestEntityTooLarge:
            limit = instance.config.max_body_bytes
            return answering.error(
                PayloadTooLarge(f"the request body is larger than {limit} bytes (--max-body-bytes)")
            )
        except TriptychError as error:
            return answering.error(error)
        # The client has left: aiohttp cancels the handler, or a write fails.
        except (asyncio.CancelledError, ConnectionError):
            instance.errors["aborted"] += 1
            raise
        except Exception as error:
            logger.error("%s %s failed", request.method, request.path, exc_info=error)
            return answering.error(InternalError("internal error"))

    def _check_key(self, request: web.BaseRequest) -> None:
        if not self._access.closed:
            return
        fleet, client = (
            request.headers.get(name, "").encode("utf-8", "surrogateescape")
            for name in (HEADER, "authorization")
        )
        refusal = self._access.judge(request.path, fleet, client, method=request.method)
        if refusal is not None:
            raise refusal

    def _route(self, request: web.BaseRequest) -> Handler:
        path = request.path
        found = self._routes.get((request.method, path))
        # The one kind of route that ends with a name: EMBEDDINGS_PATH.
        if found is None and path.count("/") == 3:
            found = self._routes.get((request.method, path.rpartition("/")[0] + "/"))
        if found is None:
            missing = TriptychError(f"{request.method} {path}: Not Found")
            known = any(route[1] == path for route in self._routes)
            missing.status, missing.code = 405 if known else 404, "invalid_request"
            missing.type = "invalid_request_error"
            raise missing
        return found
