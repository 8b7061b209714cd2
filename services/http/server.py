"""The life of an HTTP server: take the port first, say where, serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import signal
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from protocol.errors import ConfigError
from services.http.listener import Listener

GRACE_S = 5
KEEP_ALIVE_S = 75  # longer than any caller of ours keeps an idle connection


def version() -> str:
    return importlib.metadata.version("triptych")


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes any free one. `ConfigError` if the address is taken or is
    none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; answers would wait for it else.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--host, --port: cannot listen on {host}:{port}: {reason}") from None
    return listener


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    name: str,
    stop: asyncio.Event | None = None,
    http: type[asyncio.Protocol] | None = None,
    during: contextlib.AbstractAsyncContextManager[None] | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; requests under way get `GRACE_S` seconds to end.

    `http` takes the place of `Listener` for connections. `during` is entered once
    connections are accepted, and left before they are no more.
    """
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=http or Listener,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        ),
        name,
        during or contextlib.nullcontext(),
    )
    watch = asyncio.create_task(_stop_on(stop, server)) if stop is not None else None
    try:
        await server.serve(sockets=[listener])
    finally:
        if watch is not None:
            watch.cancel()


class _Server(uvicorn.Server):
    """uvicorn raises a caught signal again once it has stopped, which would end the process before
    its owner could clean up; this one only stops.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        name: str,
        during: contextlib.AbstractAsyncContextManager[None],
    ) -> None:
        super().__init__(config)
        self._name = name
        self._during = during
        self._entered = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where once connections are accepted: scripts and tests wait for this line."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            print(f"{self._name} ready on http://{host}:{port}", flush=True)
        await self._entered.enter_async_context(self._during)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._entered.aclose()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def _stop_on(stop: asyncio.Event, server: uvicorn.Server) -> None:
    await stop.wait()
    server.should_exit = True
