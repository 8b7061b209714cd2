"""A uvicorn server that hands each connection to the relay's own HTTP parser first."""

from __future__ import annotations

import functools
import gc
import socket
from typing import Any

from starlette.types import ASGIApp

from protocol.server_options import TlsOptions
from proxy.relay.hot_path import HotPath
from proxy.relay.request import Entry
from proxy.relay.server import ClientConnection
from services.http.client_bounds import Pace
from services.http.lame_duck import LameDuck
from services.http.server import serve as serve_http

CLIENT_SHARE = 1 / 3  # of the open files: a request has up to two connections to workers at once
_YOUNG = 5000  # objects that are made between two runs, some seven times the default


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    hot: HotPath,
    life: LameDuck,
    entry: Entry | None = None,
    tls: TlsOptions | None = None,
) -> None:
    """Relayed routes by `hot`, behind `entry`, everything else by `app`, until SIGINT or SIGTERM
    ends `life`."""
    _spare_the_collector()
    http, share = connection_class(hot, entry=entry), CLIENT_SHARE
    await serve_http(app, listener, "proxy", http=http, client_share=share, tls=tls, life=life)


def connection_class(hot: HotPath, pace: Pace | None = None, entry: Entry | None = None) -> Any:
    """The protocol class for `uvicorn.Config(http=…)`."""
    kind: Any = ClientConnection
    if pace is not None:
        kind = type("PacedConnection", (ClientConnection,), {"pace": pace})
    return functools.partial(kind, hot=hot, entry=entry)


def _spare_the_collector() -> None:
    # What is there before the first request stays until the end: looking through it for garbage
    # would stop all streams for tens of milliseconds, again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
