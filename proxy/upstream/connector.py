"""The connections of aiohttp's client: how they are made, and those that were kept too long."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_reqrep import ClientRequest

from proxy.upstream.failures import DROPPED, CallFailed
from proxy.upstream.patience import Patience, patiently
from proxy.upstream.time_limits import unhurried


class Connector(aiohttp.TCPConnector):
    """Connects within a time that a busy loop does not use up."""

    # aiohttp's own timeout would take a busy loop for a worker that takes no connection.

    def __init__(self, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        # Of aiohttp's own 100 connections streams would take all, and probes wait for one. Our
        # servers keep idle ones for longer, so that none is closed there as its next request comes.
        # Those of others may not, vLLM's do for 5 s: `on_live_connection` asks again.
        super().__init__(limit=0, keepalive_timeout=30.0, ssl=tls or True)
        self._connect_timeout_s = connect_timeout_s

    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> Any:
        connecting = super()._create_connection(req, traces, timeout)
        return await unhurried(connecting, self._connect_timeout_s)


@dataclass
class Sent:
    """How a call was sent: over a connection that was kept from another one, or a new one."""

    kept: bool = False


async def _note_kept(_: aiohttp.ClientSession, call: SimpleNamespace, __: object) -> None:
    if call.trace_request_ctx is not None:
        call.trace_request_ctx.kept = True


def noting_kept() -> aiohttp.TraceConfig:
    """Has a session tell the `Sent` that is given as a call's `trace_request_ctx`."""
    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(_note_kept)
    return config


async def on_live_connection(
    call: Callable[[Sent], Awaitable[aiohttp.ClientResponse]], patience: Patience, url: str
) -> aiohttp.ClientResponse:
    """The head of an answer. A kept connection that ends before it was most likely closed for being
    idle, which says nothing of the worker: aiohttp asks again by itself, but no POST."""
    ended: CallFailed | None = None
    while True:
        sent = Sent()
        try:
            return await patiently(call(sent), patience, url)
        except CallFailed as failure:
            if ended is not None and not failure.sent:
                # The worker itself has ended, and the request may be what it has ended by.
                raise ended from None
            # Each round uses up one that was kept, and the last one is on a new connection.
            if not (sent.kept and failure.kind == DROPPED):
                raise
            ended = failure
