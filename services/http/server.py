"""The life of an HTTP server: take the port first, say where, serve until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import ssl
import sys
from collections.abc import Generator
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from protocol.errors import ConfigError, NotServing
from protocol.server_options import TlsOptions
from services.http.accepting import Acceptor, Room
from services.http.lame_duck import LameDuck
from services.http.listener import Listener
from services.http.turns import SharedState

CLIENT_SHARE = 0.5  # of the open files: one connection of ours for each that is accepted
_ARRIVAL_S = 0.1  # a new connection's request is here by then
KEEP_ALIVE_S = 75  # longer than any caller of ours keeps an idle connection


def announce(line: str) -> None:
    """Print in one write, unbuffered output too: other processes of a service write to the same."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes any free one. `ConfigError` if the address is taken or is
    none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; answers would wait for it else.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # Connections of a process before this one are in TIME_WAIT, and would keep the port taken.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"--host, --port: cannot listen on {host}:{port}: {reason}") from None
    return listener


def inherited(fd: int) -> socket.socket:
    """A TCP socket that another process has bound and handed on; `ConfigError` if `fd` is none."""
    try:
        listener = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"--fd: {fd} is not an open socket: {error.strerror}") from None
    is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or listener.type != socket.SOCK_STREAM or not listener.getsockname()[1]:
        # Not closed: the descriptor is its owner's still.
        listener.detach()
        raise ConfigError(f"--fd: {fd} is not a bound TCP socket")
    return listener


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    name: str,
    stop: asyncio.Event | None = None,
    http: type[asyncio.Protocol] | None = None,
    during: contextlib.AbstractAsyncContextManager[None] | None = None,
    client_share: float = CLIENT_SHARE,
    tls: TlsOptions | None = None,
    life: LameDuck | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`, then as `life` has it.

    `http` takes the place of `Listener` for connections. `during` is entered once
    connections are accepted, and left before they are no more. `client_share` of the open files
    may be connections of clients; further ones wait.
    """
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=http or Listener,
            ws="none",
            log_config=None,
            access_log=False,
            # Clients write X-Forwarded-For at will, and look-ups are bounded by their address.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            **_certificates(tls),
        ),
        name,
        during or contextlib.nullcontext(),
        client_share,
        life or LameDuck(),
    )
    watch = asyncio.create_task(_stop_on(stop, server)) if stop is not None else None
    try:
        await server.serve(sockets=[listener])
    finally:
        if watch is not None:
            watch.cancel()


def _certificates(tls: TlsOptions | None) -> dict[str, Any]:
    """uvicorn's words for the options; nothing if the server speaks without TLS."""
    if tls is None or not tls.serves_tls:
        return {}
    asked = ssl.CERT_REQUIRED if tls.ssl_ca_certs else ssl.CERT_NONE
    return {
        "ssl_certfile": tls.ssl_certfile,
        "ssl_keyfile": tls.ssl_keyfile or None,
        "ssl_ca_certs": tls.ssl_ca_certs or None,
        "ssl_cert_reqs": asked,
    }


class _Server(uvicorn.Server):
    """uvicorn raises a caught signal again once it has stopped, which would end the process before
    its owner could clean up; this one only stops.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        name: str,
        during: contextlib.AbstractAsyncContextManager[None],
        client_share: float,
        life: LameDuck,
    ) -> None:
        super().__init__(config)
        self.server_state = self._shared = SharedState()
        self._name = name
        self._during = during
        self._client_share = client_share
        self._life = life
        self._entered = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where once connections are accepted: scripts and tests wait for this line."""
        # No sockets: uvicorn would make servers of its own, which accept without `Room`.
        await super().startup([])
        room = Room(self._client_share)
        room.count(self._shared.connections)
        for listener in sockets or ():
            self.servers.append(self._accepting(listener, room))
            host, port = listener.getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            announce(f"{self._name} ready on {scheme}://{host}:{port}")
        # Registered once the port answers: who learns of it may call at once.
        await self._entered.enter_async_context(self._during)
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        """Clients are to go elsewhere with their next requests; those that come are served."""
        await self._life.begun.wait()
        self._shared.keep_alive = False
        await self._life.over()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM, or Ctrl-C."""
        self._life.signal()

    def _accepting(self, listener: socket.socket, room: Room) -> Any:
        config, protocol = self.config, cast(Any, self.config.http_protocol_class)
        return Acceptor(
            listener,
            functools.partial(
                protocol, config=config, server_state=self._shared, app_state=self.lifespan.state
            ),
            room,
            self._crowded,
            config.ssl,
        )

    def _crowded(self, waiting: bool) -> None:
        """While connections wait for room, none is kept once it is idle."""
        self._shared.keep_alive = not (waiting or self._life.draining)
        if waiting:
            for connection in list(self._shared.connections):
                connection.give_way()  # type: ignore[union-attr]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, let what is under way end, tell the rest that it will not."""
        self._leaving.cancel()
        # With `stop` there was no drain, in which connections learn that they end.
        self._shared.keep_alive = False
        # A registration ends while the port still answers: clients are sent here until then.
        await self._entered.aclose()
        self._close(sockets or [])
        connections = self._shared.connections
        for connection in list(connections):
            connection.shutdown()
        # A connection that was accepted a moment ago has sent its request: it must be seen as busy.
        await asyncio.sleep(_ARRIVAL_S)
        if not await self._life.finished(self._busy):
            error = NotServing("the server is shutting down", retry_after_s=1.0)
            for connection in list(connections):
                connection.end(error)  # type: ignore[union-attr]
            await self._life.told(lambda: bool(connections))
        for connection in list(connections):
            # Who has not taken its error by now would keep the process.
            connection.transport.abort()
        # Handlers whose client is gone tell workers to abort: they end by themselves if they can.
        await self._life.told(lambda: bool(self._shared.tasks))
        for task in self._shared.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    def _close(self, sockets: list[socket.socket]) -> None:
        """The port. Connections that were made before are served."""
        # The kernel has completed these handshakes: closing the socket would reset the clients.
        for acceptor in self.servers:
            acceptor.take_waiting()  # type: ignore[attr-defined]
            acceptor.close()
        for listener in sockets:
            listener.close()

    def _busy(self) -> bool:
        return not all(connection.unused for connection in self._shared.connections)  # type: ignore[union-attr]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # By the loop: `handle_exit` sets events of asyncio, which a bare signal handler may not.
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
